//! Runs a list of cases in one process and says of each how it went.

use std::error::Error;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use burn::tensor::Device;

use crate::tensors::Tensors;

/// A case's name, and what loads its weights and runs it.
pub type Case = (&'static str, fn(&Path, &Tensors, &Device) -> Result<Tensors, Box<dyn Error>>);

/// Runs the jobs of the file that is the first argument, from the line on that is the second one.
///
/// A line has a case, its weights, its inputs and where its outputs go, with tabs between; for each a line is printed:
/// `ok`, or the error or the panic.
pub fn run_jobs(cases: &[Case]) -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [jobs, first] = arguments.as_slice() else {
        return Err("expected: a file of jobs, and the number of the first one to run".into());
    };
    std::panic::set_hook(Box::new(|_| {}));
    for job in std::fs::read_to_string(jobs)?.lines().skip(first.parse()?) {
        let fields: Vec<&str> = job.split('\t').collect();
        let [name, weights, inputs, outputs] = fields.as_slice() else {
            return Err(format!("not a job: {job}").into());
        };
        let (_, case) = cases.iter().find(|(case, _)| case == name).ok_or("no such case")?;
        let device = Device::flex();
        let run = || -> Result<(), Box<dyn Error>> {
            case(weights.as_ref(), &Tensors::read(inputs)?, &device)?.write(outputs)?;
            Ok(())
        };
        let said = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => "ok".to_string(),
            Ok(Err(error)) => format!("error: {error}"),
            Err(panic) => format!("panic: {}", message(&*panic)),
        };
        println!("{}", said.split_whitespace().collect::<Vec<_>>().join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    match panic.downcast_ref::<String>() {
        Some(message) => message,
        None => panic.downcast_ref::<&str>().copied().unwrap_or("without a message"),
    }
}
