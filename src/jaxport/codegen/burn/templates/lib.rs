//! ${title}
//!
//! Written by jaxport ${version} for Burn 0.22. [`run`] is what `main.rs` and the test do with files; a program calls
//! [`${root}::forward`].
#![recursion_limit = "256"]
#![allow(
    clippy::approx_constant,
    clippy::excessive_precision,
    clippy::too_many_arguments,
    clippy::type_complexity
)]

${modules}

${run}
