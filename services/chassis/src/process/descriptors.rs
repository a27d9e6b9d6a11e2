//! The limit of open file descriptors. Systems set a low soft limit for programs that use `select`;
//! here every connection takes a descriptor.

/// Raises the soft limit to the hard one.
pub fn raise_limit() {
    match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => tracing::debug!(limit, "raised the limit of file descriptors"),
        Err(error) => tracing::debug!(%error, "cannot raise the limit of file descriptors"),
    }
}

#[cfg(test)]
mod tests {
    use rlimit::Resource;

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        let (soft, hard) = Resource::NOFILE.get().unwrap();
        Resource::NOFILE.set(soft.min(hard - 1), hard).unwrap();
        super::raise_limit();
        assert_eq!(Resource::NOFILE.get().unwrap(), (hard, hard));
    }
}
