/// `lax.pad`: `(before, after, between)` for each axis; a negative number takes away.
pub fn lax_pad<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    padding: [(i64, i64, usize); D],
    value: impl ElementConversion,
) -> Tensor<D, K> {
    let dims = x.dims();
    let spans = std::array::from_fn::<_, D, _>(|axis| match dims[axis] {
        0 => 0,
        size => 1 + (size - 1) * (1 + padding[axis].2),
    });
    let added = padding.map(|(before, after, _)| (before.max(0) as usize, after.max(0) as usize));
    let mut y = x;
    if padding.iter().any(|&(before, after, between)| before > 0 || after > 0 || between > 0) {
        let shape =
            std::array::from_fn::<_, D, _>(|axis| added[axis].0 + spans[axis] + added[axis].1);
        let target = Tensor::full(shape, value, (&y.device(), y.dtype()));
        let places = std::array::from_fn::<_, D, _>(|axis| {
            let start = added[axis].0 as isize;
            Slice::new(start, Some(start + spans[axis] as isize), 1 + padding[axis].2 as isize)
        });
        y = if dims.contains(&0) { target } else { target.slice_assign(places, y) };
    }
    if padding.iter().any(|&(before, after, _)| before < 0 || after < 0) {
        let sizes = y.dims();
        y = y.slice(std::array::from_fn::<_, D, _>(|axis| {
            let (before, after, _) = padding[axis];
            let start = (-before).max(0) as usize;
            start..(sizes[axis] - (-after).max(0) as usize).max(start)
        }));
    }
    y
}

/// `lax_pad` with a number that is computed.
pub fn pad_computed<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    padding: [(i64, i64, usize); D],
    value: Tensor<1, K>,
) -> Tensor<D, K> {
    let inside = lax_pad(Tensor::<D, Bool>::full(x.dims(), true, &x.device()), padding, false);
    let around = value.unsqueeze::<D>().expand::<D, _>(inside.shape());
    around.mask_where(inside, lax_pad(x, padding, 0))
}

/// The windows that slide along an axis, each in the new last axis; none where the axis is shorter than a window.
pub fn windows<const D: usize, const E: usize, K: Basic>(
    x: Tensor<D, K>,
    axis: usize,
    size: usize,
    step: usize,
) -> Tensor<E, K> {
    let dims = x.dims();
    if dims[axis] >= size {
        return x.unfold(axis, size, step);
    }
    let shape = std::array::from_fn::<_, E, _>(|place| match place {
        _ if place == axis => 0,
        _ if place == D => size,
        _ => dims[place],
    });
    Tensor::empty(shape, (&x.device(), x.dtype()))
}

/// What a function makes of the last axis of the windows that slide along each axis, one after the other; the size, the
/// step and the dilation of the windows are given for all of them.
pub fn reduce_windows<const D: usize, const E: usize, K: Basic>(
    mut x: Tensor<D, K>,
    sliding: [(usize, usize, usize); D],
    reduce: impl Fn(Tensor<E, K>) -> Tensor<E, K>,
) -> Tensor<D, K> {
    for (axis, (size, step, dilation)) in sliding.into_iter().enumerate() {
        if (size, step) != (1, 1) {
            let whole = windows::<D, E, K>(x, axis, (size - 1) * dilation + 1, step);
            let apart = whole.slice_dim(D, Slice::new(0, None, dilation as isize));
            x = reduce(apart).squeeze_dim::<D>(D);
        }
    }
    x
}
