//! Placeholder of the mesh tests.

faultline_tests::role!();
