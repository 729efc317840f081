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

/// The elements of a list from the last to the first.
pub fn reversed<T>(mut values: Vec<T>) -> Vec<T> {
    values.reverse();
    values
}

/// Rows as a tensor of this shape; there may be none, of which `Tensor::stack` makes nothing.
pub fn stacked_rows<const D: usize, const E: usize, K: Basic>(
    rows: Vec<Tensor<D, K>>,
    shape: [usize; E],
    options: impl Into<TensorCreationOptions>,
) -> Tensor<E, K> {
    if rows.is_empty() {
        return Tensor::empty(shape, options);
    }
    Tensor::cat(rows, 0).reshape(shape)
}

/// `1 - erf(x)`: `lax.erfc`, up to the digits that the difference loses where `x` is large.
pub fn erfc<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    1.0 - x.erf()
}

/// The cube root: `jnp.cbrt`.
pub fn cbrt<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone().sign() * x.abs().powf_scalar(1.0 / 3.0)
}

/// Two to the power of `x`: `jnp.exp2`.
pub fn exp2<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    (x * std::f64::consts::LN_2).exp()
}

/// The nearest integer, away from zero if two are as near: `lax.round`.
pub fn round_away_from_zero<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let whole = (x.clone().abs() + 0.5).floor() * x.clone().sign();
    let is_whole = x.clone().floor().equal(x.clone());
    whole.mask_where(is_whole, x)
}

/// Each row of `x` by each row of a table: `module::linear` of the table's transpose would first copy the table.
pub fn linear_transposed<const D: usize>(x: Tensor<D>, table: Tensor<2>) -> Tensor<D> {
    let mut shape = x.dims();
    shape[D - 1] = table.dims()[0];
    let columns = x.flatten::<2>(0, D - 2).transpose();
    table.matmul(columns).transpose().reshape(shape)
}
