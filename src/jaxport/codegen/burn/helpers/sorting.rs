/// The order of elements along an axis, equal ones as they come: rows of keys, as host numbers, are sorted.
fn ordered<const D: usize, T: Copy>(
    keys: Vec<T>,
    dims: [usize; D],
    axis: usize,
    descending: bool,
    compare: impl Fn(T, T) -> Ordering,
    device: &Device,
) -> Tensor<D, Int> {
    let (size, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let mut order = vec![0i64; keys.len()];
    for row in 0..keys.len() / size.max(1) {
        let place = |index: usize| row / inner * inner * size + index * inner + row % inner;
        let mut indices: Vec<usize> = (0..size).collect();
        indices.sort_by(|&a, &b| {
            let (a, b) = (keys[place(a)], keys[place(b)]);
            if descending { compare(b, a) } else { compare(a, b) }
        });
        for (rank, index) in indices.into_iter().enumerate() {
            order[place(rank)] = index as i64;
        }
    }
    Tensor::from_data(TensorData::new(order, dims), (device, DType::I32))
}

/// The indices that sort `x` along an axis, equal elements as they come and NaN after all numbers: `jnp.argsort`.
///
/// Descending, NaN comes first and equal elements still come as they are: the order of `lax.top_k`.
pub fn argsort<const D: usize>(x: Tensor<D>, axis: usize, descending: bool) -> Tensor<D, Int> {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<f64> = x.into_data().iter().collect();
    let compare = |a: f64, b: f64| a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    ordered(keys, dims, axis, descending, compare, &device)
}

/// The indices that sort the integers `x` along an axis, equal ones as they come: `jnp.argsort`.
pub fn argsort_int<const D: usize>(
    x: Tensor<D, Int>,
    axis: usize,
    descending: bool,
) -> Tensor<D, Int> {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<i64> = x.into_data().iter().collect();
    ordered(keys, dims, axis, descending, |a, b| a.cmp(&b), &device)
}

/// The `k` greatest elements of the last axis and where they are, of equal ones the first: `lax.top_k`.
pub fn top_k<const D: usize>(x: Tensor<D>, k: usize) -> (Tensor<D>, Tensor<D, Int>) {
    let indices = argsort(x.clone(), D - 1, true).slice_dim(D - 1, 0..k);
    (x.gather(D - 1, indices.clone()), indices)
}

/// The `k` greatest integers of the last axis and where they are, of equal ones the first: `lax.top_k`.
pub fn top_k_int<const D: usize>(x: Tensor<D, Int>, k: usize) -> (Tensor<D, Int>, Tensor<D, Int>) {
    let indices = argsort_int(x.clone(), D - 1, true).slice_dim(D - 1, 0..k);
    (x.gather(D - 1, indices.clone()), indices)
}
