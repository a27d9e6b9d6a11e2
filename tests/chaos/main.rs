//! Placeholder of the chaos tests.

faultline_tests::role!();
