//! The chain of an error: the error, its `source()`, the source of that, and so on. Every search
//! and every printer of error chains in the workspace uses these functions.

use std::error::Error;

/// Iterates over an error and its sources, outermost first.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn Error + 'static)| error.source())
}

/// The chain on one line: `outer: inner: innermost`.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = causes(error).map(ToString::to_string).collect();
    texts.join(": ")
}
