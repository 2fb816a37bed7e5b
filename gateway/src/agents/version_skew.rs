//! The versions of agentk that a kas serves: two minor versions back, and one ahead.

/// Minor versions of agentk before that of kas that kas serves.
const BACK: u64 = 2;
/// Minor versions of agentk after that of kas that kas serves.
const AHEAD: u64 = 1;

/// The version of an agentk, seen from a kas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionSkew {
    /// kas serves it. Also the result for a text that is not a version, such as that of a custom build.
    Served,
    /// kas serves it, and the next minor version of kas does not.
    Outdated,
    /// kas does not serve it any more.
    TooOld,
    /// kas does not serve it yet.
    TooNew,
}

impl VersionSkew {
    /// Compares the version of an agentk with that of a kas.
    pub(crate) fn new(kas: &str, agentk: &str) -> Self {
        let (Some(kas), Some(agentk)) = (major_minor(kas), major_minor(agentk)) else { return Self::Served };
        let ((major, minor), (agentk_major, agentk_minor)) = (kas, agentk);
        match agentk_major.cmp(&major) {
            std::cmp::Ordering::Less => Self::TooOld,
            std::cmp::Ordering::Greater => Self::TooNew,
            std::cmp::Ordering::Equal if agentk_minor > minor + AHEAD => Self::TooNew,
            std::cmp::Ordering::Equal if agentk_minor + BACK < minor => Self::TooOld,
            std::cmp::Ordering::Equal if agentk_minor + BACK == minor => Self::Outdated,
            std::cmp::Ordering::Equal => Self::Served,
        }
    }
}

/// Returns the versions of agentk that a kas serves, for messages.
pub(super) fn served_versions(kas: &str) -> String {
    let (major, minor) = major_minor(kas).unwrap_or_default();
    format!("{major}.{} to {major}.{}", minor.saturating_sub(BACK), minor + AHEAD)
}

/// Returns the first two numbers of a version such as `0.1.0` or `v0.1.0-7-gabcdef`.
fn major_minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).splitn(3, '.');
    let mut next = || -> Option<u64> { numbers.next()?.parse::<u32>().ok().map(u64::from) };
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minor_versions_back_and_one_ahead_are_served() {
        for (kas, agentk, expected) in [
            ("0.5.0", "0.5.9", VersionSkew::Served),
            ("0.5.0", "0.6.0", VersionSkew::Served),
            ("0.5.0", "0.7.0", VersionSkew::TooNew),
            ("0.5.0", "0.4.0", VersionSkew::Served),
            ("0.5.0", "v0.3.1-7-gabcdef", VersionSkew::Outdated),
            ("0.5.0", "0.2.9", VersionSkew::TooOld),
            ("0.1.0", "0.0.1", VersionSkew::Served),
            ("1.0.0", "0.9.0", VersionSkew::TooOld),
            ("1.0.0", "2.0.0", VersionSkew::TooNew),
            ("0.5.0", "0.4294967295.0", VersionSkew::TooNew),
        ] {
            assert_eq!(VersionSkew::new(kas, agentk), expected, "kas {kas}, agentk {agentk}");
        }
        assert_eq!(served_versions("0.5.2"), "0.3 to 0.6");
        assert_eq!(served_versions("0.1.0"), "0.0 to 0.2");
    }

    #[test]
    fn text_that_is_no_version_is_served() {
        for text in ["", "dev", "0", "1.x.0", "-1.2.3", "0.99999999999999999999.0"] {
            assert_eq!(VersionSkew::new("0.5.0", text), VersionSkew::Served, "{text}");
        }
    }
}
