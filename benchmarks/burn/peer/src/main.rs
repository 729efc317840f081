//! `peer model.onnx out/` writes the peer's source for a file.
use burn_onnx::ModelGen;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        panic!("expected: a file of ONNX, and a folder");
    };
    ModelGen::new().input(input).out_dir(output).run_from_cli();
}
