//! What a store that several coordinators share must do.
