/// A linear layer of integers: its weight is int8, and its operand is rounded to 256 steps in each call. The weight is not
/// trained.
#[derive(Module, Debug)]
pub struct DynamicQuantizedLinear {
    pub weight: Param<Tensor<2, Int>>,
    pub scales: Param<Tensor<1>>,
    pub zero_points: Option<Param<Tensor<1, Int>>>,
    pub bias: Option<Param<Tensor<1>>>,
}

/// The configuration of [`DynamicQuantizedLinear`].
#[derive(Config, Debug)]
pub struct DynamicQuantizedLinearConfig {
    pub in_features: usize,
    pub out_features: usize,
    #[config(default = true)]
    pub bias: bool,
    #[config(default = false)]
    pub zero_points: bool,
}

impl DynamicQuantizedLinearConfig {
    /// Makes the layer with zeros.
    pub fn init(&self, device: &Device) -> DynamicQuantizedLinear {
        let columns = [self.out_features];
        DynamicQuantizedLinear {
            weight: integers([self.in_features, self.out_features], device),
            scales: Initializer::Zeros.init(columns, device).set_require_grad(false),
            zero_points: self.zero_points.then(|| integers(columns, device)),
            bias: self.bias.then(|| Initializer::Zeros.init(columns, device)),
        }
    }
}

impl DynamicQuantizedLinear {
    /// Multiplies in integers; the zero points are corrected by the sums of the columns and of the rows.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (device, mut shape) = (x.device(), x.dims());
        let rows = x.reshape([shape[..D - 1].iter().product(), shape[D - 1]]);
        let low = rows.clone().min().clamp_max(0.0);
        let range = rows.clone().max().clamp_min(0.0) - low.clone();
        let range = range.clone().mask_fill(range.equal_elem(0.0), 1.0);
        let step = range / Tensor::full([1], 255.0, (&device, DType::F32));
        let origin = (-low / step.clone()).clamp(0.0, 255.0).round();
        let whole =
            (rows / step.clone().unsqueeze::<2>()).round() + origin.clone().unsqueeze::<2>();
        let whole = whole.clamp(0.0, 255.0).cast(IntDType::I32) - 128;
        let (weight, offset) =
            (self.weight.val().cast(IntDType::I32), -origin.cast(IntDType::I32) + 128);
        let mut product = whole.clone().matmul(weight.clone())
            + weight.sum_dim(0) * offset.clone().unsqueeze::<2>();
        if let Some(zero_points) = &self.zero_points {
            let sums = (whole + offset.unsqueeze::<2>()).sum_dim(1);
            product = product - sums * zero_points.val().cast(IntDType::I32).unsqueeze::<2>();
        }
        let scaled = product.cast(FloatDType::F32) * (step * self.scales.val()).unsqueeze::<2>();
        shape[D - 1] = scaled.dims()[1];
        let y = scaled.reshape(shape);
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }
}

/// A linear layer with a weight of few bits, packed into bytes, in blocks with a scale each. The weight is not trained.
#[derive(Module, Debug)]
pub struct QuantizedLinear {
    pub packed: Param<Tensor<3, Int>>,
    pub scales: Param<Tensor<2>>,
    pub zero_points: Option<Param<Tensor<2, Int>>>,
    pub bias: Option<Param<Tensor<1>>>,
    pub in_features: usize,
    pub bits: usize,
}

/// The configuration of [`QuantizedLinear`].
#[derive(Config, Debug)]
pub struct QuantizedLinearConfig {
    pub in_features: usize,
    pub out_features: usize,
    pub bits: usize,
    pub block_size: usize,
    #[config(default = true)]
    pub bias: bool,
    #[config(default = false)]
    pub zero_points: bool,
}

impl QuantizedLinearConfig {
    /// Makes the layer with zeros.
    pub fn init(&self, device: &Device) -> QuantizedLinear {
        let (rows, blocks) = (self.out_features, self.in_features.div_ceil(self.block_size));
        QuantizedLinear {
            packed: integers([rows, blocks, self.block_size * self.bits / 8], device),
            scales: Initializer::Zeros.init([rows, blocks], device).set_require_grad(false),
            zero_points: self.zero_points.then(|| integers([rows, blocks], device)),
            bias: self.bias.then(|| Initializer::Zeros.init([rows], device)),
            in_features: self.in_features,
            bits: self.bits,
        }
    }
}

impl QuantizedLinear {
    /// Multiplies with the weight as floats.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight().transpose();
        module::linear(x, weight, self.bias.as_ref().map(Param::val))
    }

    /// The weight as floats: a row for each output.
    pub fn weight(&self) -> Tensor<2> {
        let (packed, scales) = (self.packed.val().cast(IntDType::I32), self.scales.val());
        let [rows, blocks] = scales.dims();
        let part = |at: usize| {
            let shifted = packed.clone().bitwise_right_shift_scalar((at * self.bits) as i32);
            shifted.bitwise_and_scalar((1 << self.bits) - 1)
        };
        let parts = (0..8 / self.bits).map(part).collect();
        let numbers = Tensor::stack::<4>(parts, 3).flatten::<3>(2, 3).cast(FloatDType::F32);
        let centered = match &self.zero_points {
            Some(zeros) => numbers - zeros.val().cast(FloatDType::F32).unsqueeze_dim(2),
            None => numbers - (1 << (self.bits - 1)) as f32,
        };
        let values = centered * scales.unsqueeze_dim(2);
        let width = values.dims()[2];
        values.reshape([rows, blocks * width]).slice_dim(1, 0..self.in_features)
    }
}

/// Rounds to the values that an integer type has with a scale and a zero point, which are not trained.
#[derive(Module, Debug)]
pub struct FakeQuantize {
    pub scale: Param<Tensor<1>>,
    pub zero_point: Param<Tensor<1, Int>>,
    pub least: f64,
    pub most: f64,
}

/// The configuration of [`FakeQuantize`]: the range of the integers.
#[derive(Config, Debug)]
pub struct FakeQuantizeConfig {
    pub least: f64,
    pub most: f64,
}

impl FakeQuantizeConfig {
    /// Makes the layer with a scale of 1 and a zero point of 0.
    pub fn init(&self, device: &Device) -> FakeQuantize {
        FakeQuantize {
            scale: Initializer::Ones.init([1], device).set_require_grad(false),
            zero_point: integers([1], device),
            least: self.least,
            most: self.most,
        }
    }
}

impl FakeQuantize {
    /// Rounds to the nearest of the values, to the even one of two; NaN to that of 0.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let scale = self.scale.val().unsqueeze::<D>();
        let zero = self.zero_point.val().cast(FloatDType::F32).unsqueeze::<D>();
        let whole = (x / scale.clone()).round() + zero.clone();
        let whole = whole.clamp(self.least, self.most).cast(IntDType::I32);
        (whole.cast(FloatDType::F32) - zero) * scale
    }
}

/// Integers that are not trained.
fn integers<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D, Int>> {
    Param::initialized(ParamId::new(), Tensor::zeros(shape, device))
}
