//! `cargo run --release -- input.safetensors output.safetensors [weights]`
use std::error::Error;
use std::ffi::OsStr;

use burn::tensor::Device;

use ${crate}::tensors::Tensors;
use ${crate}::{load, run};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let (inputs, outputs, weights) = match arguments.as_slice() {
        [inputs, outputs] => (inputs, outputs, OsStr::new("model.safetensors")),
        [inputs, outputs, weights] => (inputs, outputs, weights.as_os_str()),
        _ => return Err("expected: input.safetensors output.safetensors [weights]".into()),
    };
    let device = Device::default();
    let model = load(weights, &device)?;
    run(&model, &Tensors::read(inputs)?, &device)?.write(outputs)?;
    Ok(())
}
