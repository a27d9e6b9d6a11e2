//! The one binary. All of its code is in the library, so that tests can call it.

fn main() -> std::process::ExitCode {
    faultline::run(std::env::args_os(), &faultline::config::environment()).into()
}
