/// Where the first `count` elements of each row are in its order, equal ones as they come: of keys, as host numbers.
///
/// Burn's own sorts leave the order of equal elements open, and that of NaN to the device.
fn ordered<const D: usize, T: Copy>(
    keys: Vec<T>,
    dims: [usize; D],
    axis: usize,
    count: usize,
    compare: impl Fn(T, T) -> Ordering,
    device: &Device,
) -> Tensor<D, Int> {
    let (size, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let mut shape = dims;
    shape[axis] = count;
    let mut order = vec![0i64; shape.iter().product()];
    for row in 0..keys.len() / size.max(1) {
        let first = |size: usize| row / inner * inner * size + row % inner;
        let key = |index: usize| keys[first(size) + index * inner];
        let comes_before = |a: &usize, b: &usize| compare(key(*a), key(*b)).then(a.cmp(b));
        let mut indices: Vec<usize> = (0..size).collect();
        if count < size {
            indices.select_nth_unstable_by(count, comes_before);
            indices.truncate(count);
        }
        indices.sort_unstable_by(comes_before);
        for (rank, index) in indices.into_iter().enumerate() {
            order[first(count) + rank * inner] = index as i64;
        }
    }
    Tensor::from_data(TensorData::new(order, shape), (device, DType::I32))
}

/// The order of floats in which NaN comes after all numbers.
fn nan_last(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The indices that sort `x` along an axis, equal elements as they come and NaN after all numbers: `jnp.argsort`.
///
/// Descending, NaN comes first and equal elements still come as they are.
pub fn argsort<const D: usize>(x: Tensor<D>, axis: usize, descending: bool) -> Tensor<D, Int> {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<f64> = x.into_data().iter().collect();
    let compare = |a: f64, b: f64| if descending { nan_last(b, a) } else { nan_last(a, b) };
    ordered(keys, dims, axis, dims[axis], compare, &device)
}

/// The indices that sort the integers `x` along an axis, equal ones as they come: `jnp.argsort`.
pub fn argsort_int<const D: usize>(
    x: Tensor<D, Int>,
    axis: usize,
    descending: bool,
) -> Tensor<D, Int> {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<i64> = x.into_data().iter().collect();
    let compare = |a: i64, b: i64| if descending { b.cmp(&a) } else { a.cmp(&b) };
    ordered(keys, dims, axis, dims[axis], compare, &device)
}

/// The `k` greatest elements of the last axis and where they are, of equal ones the first: `lax.top_k`.
///
/// NaN is beyond the infinity of its sign, as XLA's is: a sort in ascending order may be the one of `-x`.
pub fn top_k<const D: usize>(x: Tensor<D>, k: usize) -> (Tensor<D>, Tensor<D, Int>) {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<f64> = x.clone().into_data().iter().collect();
    let greatest = |a: f64, b: f64| b.partial_cmp(&a).unwrap_or_else(|| b.total_cmp(&a));
    let indices = ordered(keys, dims, D - 1, k, greatest, &device);
    (x.gather(D - 1, indices.clone()), indices)
}

/// The `k` greatest integers of the last axis and where they are, of equal ones the first: `lax.top_k`.
pub fn top_k_int<const D: usize>(x: Tensor<D, Int>, k: usize) -> (Tensor<D, Int>, Tensor<D, Int>) {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<i64> = x.clone().into_data().iter().collect();
    let indices = ordered(keys, dims, D - 1, k, |a, b| b.cmp(&a), &device);
    (x.gather(D - 1, indices.clone()), indices)
}

/// Where each of the different slices along an axis is first, which of them each is, and how often each is: in order.
fn slices_apart<const D: usize, T: Copy>(
    keys: Vec<T>,
    dims: [usize; D],
    axis: usize,
    compare: impl Fn(T, T) -> Ordering,
    options: (&Device, DType),
) -> (Tensor<1, Int>, Tensor<1, Int>, Tensor<1, Int>) {
    let (size, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let outer = dims[..axis].iter().product::<usize>();
    let places = || (0..outer).flat_map(|row| (0..inner).map(move |column| row * size * inner + column));
    let in_order = |a: usize, b: usize| {
        let compared = places().map(|at| compare(keys[at + a * inner], keys[at + b * inner]));
        compared.fold(Ordering::Equal, Ordering::then)
    };
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&a, &b| in_order(a, b));
    let (mut first, mut counts) = (Vec::<i64>::new(), Vec::<i64>::new());
    let mut inverse = vec![0i64; size];
    for (rank, &index) in order.iter().enumerate() {
        if rank == 0 || in_order(order[rank - 1], index) != Ordering::Equal {
            first.push(index as i64);
            counts.push(0);
        }
        inverse[index] = first.len() as i64 - 1;
        *counts.last_mut().expect("there is one") += 1;
    }
    let tensor = |numbers: Vec<i64>| {
        let shape = [numbers.len()];
        Tensor::from_data(TensorData::new(numbers, shape), options)
    };
    (tensor(first), tensor(inverse), tensor(counts))
}

/// Where each of the different slices of `x` along an axis is first, which of them each is, and how often each is: `jnp.unique`.
pub fn distinct<const D: usize>(
    x: Tensor<D>,
    axis: usize,
    dtype: DType,
) -> (Tensor<1, Int>, Tensor<1, Int>, Tensor<1, Int>) {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<f64> = x.into_data().iter().collect();
    let compare = |a: f64, b: f64| nan_last(a, b);
    slices_apart(keys, dims, axis, compare, (&device, dtype))
}

/// Where each of the different slices of the integers `x` along an axis is first, which of them each is, and how often each is.
pub fn distinct_int<const D: usize>(
    x: Tensor<D, Int>,
    axis: usize,
    dtype: DType,
) -> (Tensor<1, Int>, Tensor<1, Int>, Tensor<1, Int>) {
    let (dims, device) = (x.dims(), x.device());
    let keys: Vec<i64> = x.into_data().iter().collect();
    slices_apart(keys, dims, axis, |a, b| a.cmp(&b), (&device, dtype))
}

/// The elements of a list from the last to the first.
pub fn reversed<T>(mut values: Vec<T>) -> Vec<T> {
    values.reverse();
    values
}
