//! The versions of A2A that a gateway serves.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V03,
}

impl Version {
    /// Parses `A2A-Version`. Every 1.x counts as 1.0, and a patch number is ignored; empty is 0.3.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| {
            let digits = !number.is_empty() && number.len() < 4;
            number.parse::<u16>().ok().filter(|_| digits && !number.starts_with('+'))
        });
        let major = numbers.next();
        let minor = numbers.next();
        let patch = numbers.next();
        let well_formed = minor != Some(None) && patch != Some(None) && numbers.next().is_none();
        match (major.flatten(), minor.flatten()) {
            _ if text.is_empty() => Some(Version::V03),
            _ if !well_formed => None,
            (Some(1), _) => Some(Version::V1),
            (Some(0), Some(3)) => Some(Version::V03),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_major_and_minor() {
        for v1 in ["1", "1.0", "1.0.1", "1.1", "1.27.3"] {
            assert_eq!(Version::read(v1), Some(Version::V1), "{v1}");
        }
        for v03 in ["", "0.3", "0.3.0", "0.3.26"] {
            assert_eq!(Version::read(v03), Some(Version::V03), "{v03}");
        }
        for other in
            ["0", "0.2", "2", "2.0", "10", "abc", "1.", ".", "1.x", "1.0.0.0", "+1", "v1", "-1"]
        {
            assert_eq!(Version::read(other), None, "{other}");
        }
    }
}
