//! The model gives what it gave when the crate was written, for the inputs in `tests/inputs.safetensors`.
#![cfg(feature = "std")]

use std::path::Path;

use burn::tensor::Device;

use ${crate}::tensors::Tensors;
use ${crate}::{load, run};

/// How far a result may be from the stored one, as a part of the largest number in it.
const TOLERANCE: f64 = ${tolerance};

#[test]
fn outputs_are_those_stored() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let device = Device::default();
    let model = load(folder.join("model.safetensors"), &device).unwrap();
    let inputs = Tensors::read(folder.join("tests/inputs.safetensors")).unwrap();
    let expected = Tensors::read(folder.join("tests/outputs.safetensors")).unwrap();
    let outputs = run(&model, &inputs, &device).unwrap();
    for ((name, output), (stored, expected)) in outputs.iter().zip(expected.iter()) {
        assert_eq!(name, stored);
        assert_eq!(output.shape(), expected.shape(), "the shape of `{name}`");
        let finite = expected.iter::<f64>().filter(|x| x.is_finite());
        let scale = finite.fold(0.0, |scale, x| x.abs().max(scale));
        for (x, y) in output.iter::<f64>().zip(expected.iter::<f64>()) {
            let near = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= TOLERANCE * scale;
            assert!(near, "`{name}` has {x} where {y} is stored");
        }
    }
}
