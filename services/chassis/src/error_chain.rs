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
pub fn one_line(error: &(impl Error + ?Sized)) -> String {
    let mut text = error.to_string();
    for cause in error.source().into_iter().flat_map(causes) {
        text.push_str(": ");
        text.push_str(&cause.to_string());
    }
    text
}
