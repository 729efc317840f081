/// Indices in a type in which no size overflows.
fn widened<const D: usize>(indices: Tensor<D, Int>) -> Tensor<D, Int> {
    match indices.dtype() {
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => indices.cast(IntDType::I32),
        DType::U32 | DType::U64 => indices.cast(IntDType::I64),
        _ => indices,
    }
}

/// Indices that count from the end where negative, as numbers from the start; what is outside stays so.
pub fn wrapped<const D: usize>(indices: Tensor<D, Int>, size: usize) -> Tensor<D, Int> {
    let indices = widened(indices);
    let negative = indices.clone().lower_elem(0);
    indices.clone().mask_where(negative, indices + size as i64)
}

/// Indices moved to the nearest element where they are outside: the mode `clip`.
pub fn clipped<const D: usize>(indices: Tensor<D, Int>, size: usize) -> Tensor<D, Int> {
    widened(indices).clamp(0, size as i64 - 1)
}

/// Whether indices that count from the start are outside.
pub fn outside<const D: usize>(indices: Tensor<D, Int>, size: usize) -> Tensor<D, Bool> {
    let indices = widened(indices);
    indices.clone().lower_elem(0).bool_or(indices.greater_equal_elem(size as i64))
}

/// `jnp.take(x, indices, axis)` with its mode `fill`: negative indices count from the end, outside is `fill`.
pub fn take_filled<const D: usize, const DI: usize, const DO: usize, K: Numeric>(
    x: Tensor<D, K>,
    axis: usize,
    indices: Tensor<DI, Int>,
    fill: impl ElementConversion,
) -> Tensor<DO, K> {
    let size = x.dims()[axis];
    let indices = wrapped(indices, size);
    let mut shape = [1; DO];
    shape[axis..axis + DI].copy_from_slice(&indices.dims());
    let missing = outside(indices.clone(), size).reshape(shape);
    x.take::<DI, DO>(axis, clipped(indices, size)).mask_fill(missing, fill)
}

/// The rows of an embedding: negative indices count from the end, and what is outside is NaN, as `jnp.take` has it.
pub fn embed<const D: usize, const DO: usize>(
    embedding: &Embedding,
    indices: Tensor<D, Int>,
) -> Tensor<DO> {
    take_filled(embedding.weight.val(), 0, indices, f32::NAN)
}

/// `jnp.take_along_axis(x, indices, axis)`: axes of size 1 repeat, negative indices count from the end, outside is
/// `fill`.
pub fn take_along_axis<const D: usize, K: Numeric>(
    x: Tensor<D, K>,
    indices: Tensor<D, Int>,
    axis: usize,
    fill: impl ElementConversion,
) -> Tensor<D, K> {
    let size = x.dims()[axis];
    let (mut shape, mut places) = (x.dims(), indices.dims());
    for other in (0..D).filter(|&other| other != axis) {
        shape[other] = shape[other].max(places[other]).min(shape[other] * places[other]);
        places[other] = shape[other];
    }
    let indices = wrapped(indices, size).expand::<D, _>(Shape::new(places));
    let missing = outside(indices.clone(), size);
    x.expand::<D, _>(Shape::new(shape))
        .gather(axis, clipped(indices, size))
        .mask_fill(missing, fill)
}

/// `x` in another shape, which may have axes of size 0.
pub fn reshaped<const D: usize, const D2: usize, K: Basic>(
    x: Tensor<D, K>,
    shape: [usize; D2],
) -> Tensor<D2, K> {
    if shape.contains(&0) {
        return Tensor::empty(shape, (&x.device(), x.dtype()));
    }
    x.reshape(shape)
}

/// Where a window of this size begins in an axis: `lax.dynamic_slice` moves it inside.
pub fn window_start(start: i64, window: usize, size: usize) -> usize {
    start.clamp(0, size as i64 - window as i64) as usize
}

/// `lax.dynamic_slice`: a window of these sizes, moved inside where it would reach out.
pub fn dynamic_slice<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    starts: [i64; D],
    sizes: [usize; D],
) -> Tensor<D, K> {
    let dims = x.dims();
    x.slice(std::array::from_fn::<_, D, _>(|axis| {
        let start = window_start(starts[axis], sizes[axis], dims[axis]);
        start..start + sizes[axis]
    }))
}

/// `lax.dynamic_update_slice`: `x` with `update` in the place of a window, which is moved inside.
pub fn dynamic_update_slice<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    update: Tensor<D, K>,
    starts: [i64; D],
) -> Tensor<D, K> {
    let (dims, sizes) = (x.dims(), update.dims());
    let window = std::array::from_fn::<_, D, _>(|axis| {
        let start = window_start(starts[axis], sizes[axis], dims[axis]);
        start..start + sizes[axis]
    });
    x.slice_assign(window, update)
}

/// Positions in the last axis, which count from the end where negative, as numbers from the start; and the sizes of the
/// axes that they are places of.
fn placed<const DI: usize>(
    indices: Tensor<DI, Int>,
    dims: &[usize],
) -> (Tensor<DI, Int>, Tensor<DI, Int>) {
    let indices = widened(indices);
    let sizes: Vec<i64> = dims[..indices.dims()[DI - 1]].iter().map(|&size| size as i64).collect();
    let options = (&indices.device(), indices.dtype());
    let sizes = Tensor::<1, Int>::from_data(sizes.as_slice(), options).unsqueeze::<DI>();
    let negative = indices.clone().lower_elem(0);
    (indices.clone().mask_where(negative, indices + sizes.clone()), sizes)
}

/// The elements, or parts, at the positions in the last axis of `indices`: `x[i, j]` with arrays of JAX, moved inside
/// where they are outside. The first `batch` axes of both go together.
pub fn gather_nd<const D: usize, const DI: usize, const DO: usize, K: Basic>(
    x: Tensor<D, K>,
    mut indices: Tensor<DI, Int>,
    batch: usize,
) -> Tensor<DO, K> {
    for axis in (0..batch).rev() {
        let (mut row, mut whole) = ([1; DI], indices.dims());
        (row[axis], whole[DI - 1]) = (whole[axis], 1);
        let options = (&indices.device(), indices.dtype());
        let rows = Tensor::arange(0..whole[axis] as i64, options).reshape(row);
        indices = Tensor::cat(vec![rows.expand::<DI, _>(Shape::new(whole)), indices], DI - 1);
    }
    if indices.dims().contains(&0) {
        let (found, size) = (&indices.dims()[..DI - 1], indices.dims()[DI - 1]);
        let shape = [found, &x.dims()[size..]].concat();
        return Tensor::empty(Shape::from(shape), (&x.device(), x.dtype()));
    }
    let (places, sizes) = placed(indices, &x.dims());
    x.gather_nd::<DI, DO>(places.clamp_min(0).min_pair(sizes - 1))
}

/// `x` with `updates` at the positions in the last axis of `indices`: `x.at[i, j].set(updates)` and its relatives; what
/// is outside is dropped.
pub fn scatter_nd<const D: usize, const DI: usize, const DU: usize, K: Basic>(
    x: Tensor<D, K>,
    indices: Tensor<DI, Int>,
    updates: Tensor<DU, K>,
    operation: IndexingUpdateOp,
) -> Tensor<D, K> {
    if indices.dims().contains(&0) {
        return x;
    }
    let rows = x.dims()[0];
    let (places, sizes) = placed(indices, &x.dims());
    let outside = places.clone().lower_elem(0).bool_or(places.clone().greater_equal(sizes));
    let outside = outside.any_dim(DI - 1).expand::<DI, _>(places.shape());
    let mut behind = vec![0; places.dims()[DI - 1]];
    behind[0] = rows as i64; // a row that is dropped
    let options = (&places.device(), places.dtype());
    let behind = Tensor::<1, Int>::from_data(behind.as_slice(), options).unsqueeze::<DI>();
    let places = places.clone().mask_where(outside, behind.expand::<DI, _>(places.shape()));
    let spare = x.clone().slice_dim(0, 0..1);
    Tensor::cat(vec![x, spare], 0).scatter_nd(places, updates, operation).slice_dim(0, 0..rows)
}

/// `scatter_nd` of maxima or minima, which are NaN where any of their elements is.
pub fn scatter_nd_extremes<const D: usize, const DI: usize, const DU: usize>(
    x: Tensor<D>,
    indices: Tensor<DI, Int>,
    updates: Tensor<DU>,
    operation: IndexingUpdateOp,
) -> Tensor<D> {
    let (here, there) = (x.clone().is_nan().int(), updates.clone().is_nan().int());
    let missing = scatter_nd(here, indices.clone(), there, IndexingUpdateOp::Add);
    scatter_nd(x, indices, updates, operation).mask_fill(missing.greater_elem(0), f32::NAN)
}

/// A vector whose elements at positions are set, or changed by an operation, in the order of the positions.
pub fn scattered<K: Numeric>(
    x: Tensor<1, K>,
    positions: Tensor<2, Int>,
    values: Tensor<1, K>,
    operation: IndexingUpdateOp,
) -> Tensor<1, K> {
    if values.dims()[0] == 0 {
        return x;
    }
    x.scatter_nd(positions, values, operation)
}

/// `scattered` of maxima or minima, which are NaN where any of their elements is.
pub fn scattered_extremes(
    x: Tensor<1>,
    positions: Tensor<2, Int>,
    values: Tensor<1>,
    operation: IndexingUpdateOp,
) -> Tensor<1> {
    let (here, there) = (x.clone().is_nan().int(), values.clone().is_nan().int());
    let missing = scattered(here, positions.clone(), there, IndexingUpdateOp::Add);
    scattered(x, positions, values, operation).mask_fill(missing.greater_elem(0), f32::NAN)
}
