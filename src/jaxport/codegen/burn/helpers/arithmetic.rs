/// The greater of two numbers, and NaN where either is: `jnp.maximum` of floats.
pub fn maximum<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let undefined = y.clone().is_nan();
    x.max_pair(y.clone()).mask_where(undefined, y)
}

/// The lesser of two numbers, and NaN where either is: `jnp.minimum` of floats.
pub fn minimum<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let undefined = y.clone().is_nan();
    x.min_pair(y.clone()).mask_where(undefined, y)
}

/// -1, 0 or 1, and NaN where `x` is: `jnp.sign` of floats.
pub fn sign<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone().sign().mask_where(x.clone().is_nan(), x)
}

/// The quotient of integers, rounded toward zero: `lax.div`. A division by zero gives all bits set, as XLA's.
pub fn divide_int<const D: usize>(x: Tensor<D, Int>, y: Tensor<D, Int>) -> Tensor<D, Int> {
    let zero = y.clone().equal_elem(0);
    let mut divisor = y.clone().mask_fill(zero.clone(), 1);
    let mut flipped = None;
    if !y.dtype().is_uint() {
        let minus = y.clone().equal_elem(-1); // the least number divided by -1 overflows
        divisor = divisor.mask_fill(minus.clone(), 1);
        flipped = Some((minus, -x.clone()));
    }
    let mut quotient = x.div(divisor);
    if let Some((minus, negated)) = flipped {
        quotient = quotient.mask_where(minus, negated);
    }
    quotient.mask_where(zero, y.bitwise_not())
}

/// The remainder of integers with the divisor's sign: `jnp.remainder`. Modulo zero it is 0.
pub fn remainder_int<const D: usize>(x: Tensor<D, Int>, y: Tensor<D, Int>) -> Tensor<D, Int> {
    let zero = y.clone().equal_elem(0);
    x.remainder(y.mask_fill(zero, 1)) // modulo one it is 0, too
}

/// The remainder of integers with the dividend's sign: `lax.rem`. Modulo zero it is `x`.
pub fn rem_int<const D: usize>(x: Tensor<D, Int>, y: Tensor<D, Int>) -> Tensor<D, Int> {
    let zero = y.clone().equal_elem(0);
    let rest = remainder_int(x.clone(), y.clone()).mask_where(zero, x.clone());
    if y.dtype().is_uint() {
        return rest;
    }
    let apart = rest.clone().lower_elem(0).not_equal(x.lower_elem(0));
    let apart = apart.bool_and(rest.clone().not_equal_elem(0));
    rest.clone().mask_where(apart, rest - y)
}

/// `x` shifted to the left, 0 where the count is not below the width: `lax.shift_left`.
pub fn shift_left<const D: usize>(x: Tensor<D, Int>, count: Tensor<D, Int>) -> Tensor<D, Int> {
    let width = 8 * x.dtype().size() as i64;
    let outside = count.clone().lower_elem(0).bool_or(count.clone().greater_equal_elem(width));
    let shifted = x.bitwise_left_shift(count.mask_fill(outside.clone(), 0));
    shifted.mask_fill(outside, 0)
}

/// `x` shifted to the right; its sign stays: `lax.shift_right_arithmetic`, and `jnp.right_shift`.
pub fn shift_right<const D: usize>(x: Tensor<D, Int>, count: Tensor<D, Int>) -> Tensor<D, Int> {
    let width = 8 * x.dtype().size() as i64;
    let outside = count.clone().lower_elem(0).bool_or(count.clone().greater_equal_elem(width));
    if x.dtype().is_uint() {
        let shifted = x.bitwise_right_shift(count.mask_fill(outside.clone(), 0));
        return shifted.mask_fill(outside, 0);
    }
    x.bitwise_right_shift(count.mask_fill(outside, width - 1))
}

/// The bits of `x` shifted to the right, zeros from the left: `lax.shift_right_logical`.
pub fn shift_right_logical<const D: usize>(
    x: Tensor<D, Int>,
    count: Tensor<D, Int>,
) -> Tensor<D, Int> {
    let dtype = IntDType::from(x.dtype());
    let unsigned = match dtype {
        IntDType::I8 => IntDType::U8,
        IntDType::I16 => IntDType::U16,
        IntDType::I32 => IntDType::U32,
        IntDType::I64 => IntDType::U64,
        _ => dtype,
    };
    let count = count.cast(unsigned); // a negative count is a large one
    shift_right(x.cast(unsigned), count).cast(dtype)
}

/// The remainder of floats with the dividend's sign, exact for all quotients: `lax.rem`. It is computed on the host, as
/// `x - trunc(x / y) * y` has no digit left where the quotient is large.
pub fn fmod<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let shape = std::array::from_fn::<_, D, _>(|axis| match (x.dims()[axis], y.dims()[axis]) {
        (1, size) => size,
        (size, _) => size,
    });
    let (x, y) = (x.expand::<D, _>(Shape::new(shape)), y.expand::<D, _>(Shape::new(shape)));
    let (device, dtype) = (x.device(), x.dtype());
    let divisors = y.clone().detach().into_data();
    let numbers = x.clone().detach().into_data();
    let rest: Vec<f64> =
        numbers.iter::<f64>().zip(divisors.iter::<f64>()).map(|(x, y)| x % y).collect();
    let rest = Tensor::<D>::from_data(TensorData::new(rest, shape), (&device, dtype));
    let quotient = (x.clone() / y.clone()).detach().trunc();
    let [dx, dy] = [x, y].map(|tensor| {
        let change = tensor.clone() - tensor.detach(); // zeros, with a gradient
        let defined = change.clone().is_nan();
        change.mask_fill(defined, 0.0)
    });
    let slope = dy * quotient.clone().mask_fill(quotient.is_finite().bool_not(), 0.0);
    rest + dx - slope
}

/// The inverse of `sinh`, also where a square would overflow: `lax.asinh`.
pub fn asinh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let most = if x.dtype() == DType::F64 { 1e9 } else { 1e4 };
    let size = x.clone().abs();
    let large = size.clone().greater_elem(most);
    let far = (size.clamp_min(most).log() + std::f64::consts::LN_2) * x.clone().sign();
    x.clamp(-most, most).asinh().mask_where(large, far)
}

/// The inverse of `cosh`, also where a square would overflow: `lax.acosh`.
pub fn acosh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let most = if x.dtype() == DType::F64 { 1e9 } else { 1e4 };
    let large = x.clone().greater_elem(most);
    let far = x.clone().clamp_min(most).log() + std::f64::consts::LN_2;
    x.clamp_max(most).acosh().mask_where(large, far)
}

/// `exp(x) - 1` without losing the digits of a small `x`: `jnp.expm1`.
pub fn expm1<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let large = x.clone().abs().greater_elem(0.5);
    let half = (x.clone() * 0.5).mask_fill(large.clone(), 0.0).tanh();
    let near = half.clone() * 2.0 / (half.neg() + 1.0);
    near.mask_where(large, x.exp() - 1.0)
}

/// The inverse of `erf`, by the polynomials of XLA: `lax.erf_inv`.
pub fn erf_inv<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    const CENTRE: [f32; 9] = [
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        2.185_808_7e-4,
        -1.253_725e-3,
        -4.177_681_6e-3,
        2.466_407_3e-1,
        1.501_409_4,
    ];
    const TAIL: [f32; 9] = [
        -2.002_142_6e-4,
        1.009_505_6e-4,
        1.349_343_2e-3,
        -3.673_428_4e-3,
        5.739_507_7e-3,
        -7.622_461_3e-3,
        9.438_870_5e-3,
        1.001_674_06,
        2.832_976_8,
    ];
    let w = (x.clone().square().neg()).log1p().neg();
    let inner = w.clone().lower_elem(5.0);
    let (near, far) = (w.clone() - 2.5, w.sqrt() - 3.0);
    let at = far.mask_where(inner.clone(), near);
    let mut sum = at.full_like(TAIL[0]).mask_fill(inner.clone(), CENTRE[0]);
    for (tail, centre) in TAIL.into_iter().zip(CENTRE).skip(1) {
        sum = sum * at.clone() + at.full_like(tail).mask_fill(inner.clone(), centre);
    }
    let edge = x.clone().abs().equal_elem(1.0);
    (x.clone() * sum).mask_where(edge, x * f32::INFINITY)
}

/// `log(1 + exp(x))`, without an overflow where `x` is large: `jax.nn.softplus`.
pub fn softplus<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone().clamp_min(0) + (-x.abs()).exp().log1p()
}

/// `log(exp(x) + exp(y))`, without an overflow: `jnp.logaddexp`.
pub fn log_add_exp<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    let apart = x.clone() - y.clone();
    let undefined = apart.clone().is_nan(); // of equal infinities, or of NaN
    let sum = x.clone().max_pair(y.clone()) + (-apart.abs()).exp().log1p();
    sum.mask_where(undefined, x + y)
}

/// The logarithm of the running sum of exponentials along an axis: `lax.cumlogsumexp`. Each step joins what is twice as far
/// away.
pub fn cumlogsumexp<const D: usize>(x: Tensor<D>, axis: usize) -> Tensor<D> {
    let size = x.dims()[axis];
    let (mut sums, mut distance) = (x, 1);
    while distance < size {
        let before = sums.clone().slice_dim(axis, ..size - distance);
        let joined = log_add_exp(sums.clone().slice_dim(axis, distance..), before);
        sums = Tensor::cat(vec![sums.slice_dim(axis, ..distance), joined], axis);
        distance *= 2;
    }
    sums
}

/// Each element of the first half of the last axis, with that of the second half, rotated by an angle.
pub fn rotary<const D: usize>(x: Tensor<D>, cos: Tensor<D>, sin: Tensor<D>) -> Tensor<D> {
    let half = x.dims()[D - 1] / 2;
    let (a, b) = (x.clone().slice_dim(D - 1, ..half), x.slice_dim(D - 1, half..));
    let first = cos.clone() * a.clone() - sin.clone() * b.clone();
    Tensor::cat(vec![first, sin * a + cos * b], D - 1)
}

/// Each element at an even place of the last axis, with the one behind it, rotated by an angle.
pub fn rotary_interleaved<const D: usize>(
    x: Tensor<D>,
    cos: Tensor<D>,
    sin: Tensor<D>,
) -> Tensor<D> {
    let dims = x.dims();
    let [a, b] = [0, 1].map(|start| x.clone().slice_dim(D - 1, Slice::new(start, None, 2)));
    let first = cos.clone() * a.clone() - sin.clone() * b.clone();
    let pairs = [first, sin * a + cos * b].map(|rotated| rotated.flatten::<1>(0, D - 1));
    Tensor::stack::<2>(pairs.to_vec(), 1).reshape(dims)
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
    let size = x.clone().abs();
    let below = size.clone().floor();
    let rounds_up = (size - below.clone()).greater_equal_elem(0.5);
    let whole = below.clone().mask_where(rounds_up, below + 1.0) * x.clone().sign();
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
