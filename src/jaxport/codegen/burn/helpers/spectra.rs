/// The discrete Fourier transform of the axis before the last, whose last one has the real and the imaginary part. A
/// length of two factors is transformed by both, one after the other.
pub fn fourier<const D: usize>(x: Tensor<D>, inverse: bool) -> Tensor<D> {
    let (dims, device, dtype) = (x.dims(), x.device(), x.dtype());
    let length = dims[D - 2];
    let divisor = (1..=length.isqrt()).rev().find(|&size| length.is_multiple_of(size));
    let first = divisor.filter(|_| length > 64).unwrap_or(1);
    let second = length / first;
    let turned = |rows: usize, columns: usize, period: usize| {
        let sign = if inverse { std::f64::consts::TAU } else { -std::f64::consts::TAU };
        let angles: Vec<f64> = (0..rows * columns)
            .map(|place| (place / columns) * (place % columns) % period)
            .map(|turns| sign * turns as f64 / period as f64)
            .collect();
        let part = |function: fn(f64) -> f64| {
            let values: Vec<f64> = angles.iter().map(|&angle| function(angle)).collect();
            Tensor::<3>::from_data(TensorData::new(values, [1, rows, columns]), (&device, dtype))
        };
        [part(f64::cos), part(f64::sin)]
    };
    let multiplied = |[a, b]: [Tensor<3>; 2],
                      [c, d]: [Tensor<3>; 2],
                      times: fn(Tensor<3>, Tensor<3>) -> Tensor<3>| {
        let real = times(a.clone(), c.clone()) - times(b.clone(), d.clone());
        [real, times(a, d) + times(b, c)]
    };
    let rows = dims[..D - 2].iter().product::<usize>();
    let pairs = x.reshape([rows, length, 2]);
    let parts = [0, 1].map(|part| {
        pairs.clone().narrow(2, part, 1).reshape([rows, first, second])
    });
    let parts = multiplied(turned(first, first, first), parts, |a, b| a.matmul(b));
    let parts = multiplied(parts, turned(first, second, length), |a, b| a * b);
    let parts = multiplied(parts, turned(second, second, second), |a, b| a.matmul(b));
    let parts = parts.map(|part| part.swap_dims(1, 2).reshape([rows, length]));
    let y = Tensor::stack::<3>(parts.to_vec(), 2).reshape(dims);
    if inverse { y / length as f64 } else { y }
}

/// The conjugates of complex numbers, whose real and imaginary parts are the last axis.
pub fn conjugate<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let (real, imaginary) = (x.clone().narrow(D - 1, 0, 1), x.narrow(D - 1, 1, 1));
    Tensor::cat(vec![real, -imaginary], D - 1)
}

/// The first half of the discrete Fourier transform of the last axis of real numbers, as pairs: `jnp.fft.rfft`.
pub fn rfft<const D: usize, const D2: usize>(x: Tensor<D>) -> Tensor<D2> {
    let half = x.dims()[D - 1] / 2 + 1;
    let pairs = Tensor::stack::<D2>(vec![x.clone(), x.zeros_like()], D);
    fourier(pairs, false).narrow(D - 1, 0, half)
}

/// The real numbers, this many, whose transform begins with these pairs: `jnp.fft.irfft`.
pub fn irfft<const D: usize, const D2: usize>(x: Tensor<D>, length: usize) -> Tensor<D2> {
    let behind = length - (length / 2 + 1);
    let mut parts = vec![x.clone()];
    if behind > 0 {
        parts.push(conjugate(x.narrow(D - 2, 1, behind).flip([D as isize - 2])));
    }
    fourier(Tensor::cat(parts, D - 2), true).narrow(D - 1, 0, 1).squeeze_dim::<D2>(D - 1)
}
