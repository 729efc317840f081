/// The same bits as numbers of another type of the same width: `lax.bitcast_convert_type`.
pub fn bitcast<const D: usize, K: Basic, L: Basic>(x: Tensor<D, K>, dtype: DType) -> Tensor<D, L> {
    let device = x.device();
    let (bytes, shape, _) = x.into_data().into_parts();
    Tensor::from_data(TensorData::from_bytes(bytes, shape, dtype), (&device, dtype))
}

/// The numbers that a float type of few bits has: the digits behind the first one, the exponent of the least number with all
/// digits, the greatest number, and what stands for greater ones.
pub struct Grid {
    pub digits: i32,
    pub least: i32,
    pub greatest: f64,
    pub beyond: f64,
    pub negative_zero: bool,
}

/// The numbers of float8_e4m3fn.
pub const FLOAT8_E4M3FN: Grid =
    Grid { digits: 3, least: -6, greatest: 448.0, beyond: f64::NAN, negative_zero: true };

/// The numbers of float8_e4m3fnuz.
pub const FLOAT8_E4M3FNUZ: Grid =
    Grid { digits: 3, least: -7, greatest: 240.0, beyond: f64::NAN, negative_zero: false };

/// The numbers of float8_e5m2.
pub const FLOAT8_E5M2: Grid =
    Grid { digits: 2, least: -14, greatest: 57344.0, beyond: f64::INFINITY, negative_zero: true };

/// The numbers of float8_e5m2fnuz.
pub const FLOAT8_E5M2FNUZ: Grid =
    Grid { digits: 2, least: -15, greatest: 57344.0, beyond: f64::NAN, negative_zero: false };

/// The numbers of float4_e2m1fn.
pub const FLOAT4_E2M1FN: Grid =
    Grid { digits: 1, least: 0, greatest: 6.0, beyond: 6.0, negative_zero: true };

impl Grid {
    /// The nearest of the numbers; of two as near, the one whose last digit is even.
    fn nearest(&self, x: f64) -> f64 {
        if x.is_nan() {
            return if self.beyond.is_finite() { -0.0 } else { x }; // a type without NaN
        }
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let step = 2f64.powi(exponent.clamp(self.least, 1000) - self.digits);
        let nearest = (x / step).round_ties_even() * step;
        if nearest.abs() > self.greatest {
            return self.beyond.copysign(x);
        }
        if nearest == 0.0 && !self.negative_zero { 0.0 } else { nearest }
    }
}

/// Each number as the nearest that a float type of few bits has, in a tensor of float32. The gradient is that of `x`.
pub fn rounded_to<const D: usize>(x: Tensor<D>, grid: &Grid) -> Tensor<D> {
    on_host(x, |number| grid.nearest(number))
}

/// The powers of two that float8_e8m0 has, by the exponent of each number: one more if the other 23 bits are at least
/// `rounds_up`.
pub fn to_power_of_two<const D: usize>(x: Tensor<D>, rounds_up: u32, saturate: bool) -> Tensor<D> {
    on_host(x, |number| {
        let bits = (number as f32).to_bits();
        let exponent = ((bits >> 23) & 0xff) as i32 + i32::from(bits & 0x7f_ffff >= rounds_up);
        if number.is_nan() || (exponent > 254 && !saturate) {
            return f64::NAN;
        }
        2f64.powi(exponent.min(254) - 127)
    })
}

/// A function of each number, in float32. The gradient is that of `x`.
fn on_host<const D: usize>(x: Tensor<D>, function: impl Fn(f64) -> f64) -> Tensor<D> {
    let (device, shape) = (x.device(), x.dims());
    let numbers = x.clone().detach().into_data();
    let made: Vec<f32> = numbers.iter::<f64>().map(|number| function(number) as f32).collect();
    let made = Tensor::<D>::from_data(TensorData::new(made, shape), (&device, DType::F32));
    let x = x.cast(FloatDType::F32);
    let change = x.clone().detach() - x; // zeros, with a gradient
    let undefined = change.clone().is_nan();
    made - change.mask_fill(undefined, 0.0)
}

/// The lowest bits of integers as numbers from zero: what a cast to uint4 or uint2 keeps.
pub fn low_bits<const D: usize>(x: Tensor<D, Int>, count: u32) -> Tensor<D, Int> {
    x.bitwise_and_scalar((1 << count) - 1)
}

/// The lowest bits of integers, of which the first is the sign: what a cast to int4 or int2 keeps.
pub fn signed_low_bits<const D: usize>(x: Tensor<D, Int>, count: u32) -> Tensor<D, Int> {
    let sign = 1 << (count - 1);
    let x = if x.dtype().is_uint() { x.cast(IntDType::I64) } else { x };
    x.bitwise_and_scalar((1 << count) - 1).bitwise_xor_scalar(sign) - sign
}
