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
    let indices = wrapped(indices, x.dims()[axis]);
    select_filled(x, axis, indices, fill)
}

/// The rows along an axis at indices that count from the start; `fill` where these are outside.
pub fn select_filled<const D: usize, const DI: usize, const DO: usize, K: Numeric>(
    x: Tensor<D, K>,
    axis: usize,
    indices: Tensor<DI, Int>,
    fill: impl ElementConversion,
) -> Tensor<DO, K> {
    let size = x.dims()[axis];
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

/// How windows lie in an array, one for each row of indices: the dimension numbers of `lax.gather` and `lax.scatter`.
pub struct Windows<'a> {
    /// The axes of the array along which the columns of the indices say where a window begins.
    pub starts: &'a [usize],
    /// The axes of the array along which windows reach, each with that of all windows; along the others their size is 1.
    pub spans: &'a [(usize, usize)],
    /// The axes of the array that go together with an axis of the indices, each with that one.
    pub batches: &'a [(usize, usize)],
    /// Whether windows that reach outside are moved inside; else they are left out.
    pub clips: bool,
}

impl Windows<'_> {
    /// Where the elements of all windows, which have this shape, are in the flat array; and which windows reach outside.
    fn places<const DI: usize, const DO: usize>(
        &self,
        dims: &[usize],
        indices: Tensor<DI, Int>,
        shape: [usize; DO],
    ) -> (Tensor<DO, Int>, Tensor<DO, Bool>) {
        let indices = widened(indices);
        let options = (&indices.device(), indices.dtype());
        let is_row = |place: &usize| self.spans.iter().all(|(_, along)| along != place);
        let rows: Vec<usize> = (0..DO).filter(is_row).collect();
        let mut of_rows = [1; DO];
        for (&place, &size) in rows.iter().zip(&indices.dims()[..DI - 1]) {
            of_rows[place] = size;
        }
        let stride = |axis: usize| dims[axis + 1..].iter().product::<usize>() as i64;
        let mut places = Tensor::<DO, Int>::zeros(shape, options);
        let mut outside = places.clone().not_equal_elem(0);
        for (column, &axis) in self.starts.iter().enumerate() {
            let start = indices.clone().slice_dim(DI - 1, column..column + 1).reshape(of_rows);
            let start = start.expand::<DO, _>(shape);
            let span = self.spans.iter().find(|(of, _)| *of == axis);
            let last = dims[axis] as i64 - span.map_or(1, |&(_, along)| shape[along] as i64);
            let missing = start.clone().lower_elem(0).bool_or(start.clone().greater_elem(last));
            outside = outside.bool_or(missing);
            places = places + start.clamp(0, last) * stride(axis);
        }
        let batches = self.batches.iter().map(|&(axis, of)| (axis, rows[of]));
        for (axis, along) in self.spans.iter().copied().chain(batches) {
            let mut line = [1; DO];
            line[along] = shape[along];
            let steps = Tensor::<1, Int>::arange(0..shape[along] as i64, options).reshape(line);
            places = places + steps * stride(axis);
        }
        (places, outside)
    }
}

/// `lax.gather`: windows of an array; `fill` in those that are left out.
pub fn lax_gather<const D: usize, const DI: usize, const DO: usize, K: Numeric>(
    x: Tensor<D, K>,
    indices: Tensor<DI, Int>,
    windows: &Windows,
    shape: [usize; DO],
    fill: impl ElementConversion,
) -> Tensor<DO, K> {
    let dims = x.dims();
    if dims.contains(&0) || shape.contains(&0) {
        return Tensor::full(shape, fill, (&x.device(), x.dtype()));
    }
    let (places, outside) = windows.places(&dims, indices, shape);
    let found = x.reshape([-1]).select(0, places.reshape([-1])).reshape(shape);
    if windows.clips { found } else { found.mask_fill(outside, fill) }
}

/// `lax.scatter` and its relatives: `x` with `updates` in the place of windows, or changed by them.
pub fn lax_scatter<const D: usize, const DI: usize, const DU: usize, K: Numeric>(
    x: Tensor<D, K>,
    indices: Tensor<DI, Int>,
    updates: Tensor<DU, K>,
    windows: &Windows,
    operation: IndexingUpdateOp,
) -> Tensor<D, K> {
    let (dims, shape) = (x.dims(), updates.dims());
    if dims.contains(&0) || shape.contains(&0) {
        return x;
    }
    let (mut places, outside) = windows.places(&dims, indices, shape);
    let behind: usize = dims.iter().product();
    if !windows.clips {
        places = places.mask_fill(outside, behind as i64); // an element that is dropped
    }
    let flat: Tensor<1, K> = x.reshape([-1]);
    let spare = flat.clone().slice_dim(0, 0..1);
    let values: Tensor<1, K> = updates.reshape([-1]);
    let places: Tensor<2, Int> = places.reshape([-1, 1]);
    let made = Tensor::cat(vec![flat, spare], 0).scatter_nd(places, values, operation);
    made.slice_dim(0, 0..behind).reshape(dims)
}

/// `lax_scatter` of maxima or minima, which are NaN where any of their elements is.
pub fn lax_scatter_extremes<const D: usize, const DI: usize, const DU: usize>(
    x: Tensor<D>,
    indices: Tensor<DI, Int>,
    updates: Tensor<DU>,
    windows: &Windows,
    operation: IndexingUpdateOp,
) -> Tensor<D> {
    let (here, there) = (x.clone().is_nan().int(), updates.clone().is_nan().int());
    let missing = lax_scatter(here, indices.clone(), there, windows, IndexingUpdateOp::Add);
    lax_scatter(x, indices, updates, windows, operation)
        .mask_fill(missing.greater_elem(0), f32::NAN)
}
