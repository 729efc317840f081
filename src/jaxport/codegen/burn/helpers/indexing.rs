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
    indices
        .clone()
        .lower_elem(0)
        .bool_or(indices.greater_equal_elem(size as i64))
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
    x.take::<DI, DO>(axis, clipped(indices, size))
        .mask_fill(missing, fill)
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
        shape[other] = shape[other]
            .max(places[other])
            .min(shape[other] * places[other]);
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
