//! The one binary. Everything it does is in the library, where tests reach it.

fn main() -> std::process::ExitCode {
    faultline::run(std::env::args_os(), &faultline::config::environment()).into()
}
