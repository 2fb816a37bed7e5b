//! The versions of agentk that a kas serves: two minor versions back, and one ahead.
//!
//! The first version of a major version follows the last minor version of the one before: after 0.9 comes 1.0, which serves 0.8.

/// Minor versions of agentk before that of kas that kas serves.
const BACK: u64 = 2;
/// Minor versions of agentk after that of kas that kas serves.
const AHEAD: u64 = 1;
/// The last minor version of each major version before that of this kas, from 0 on. The release of a major version adds one.
const LAST_MINORS: &[u64] = &[];

/// The version of an agentk, seen from a kas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionSkew {
    /// kas serves it. Also the result for a text that is not a version, such as that of a custom build.
    Served,
    /// kas serves it, and the next minor version of kas does not.
    Outdated,
    /// kas does not serve it any more.
    TooOld,
    /// kas does not serve it yet.
    TooNew,
}

/// The first two numbers of a version, in the order of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Minor {
    major: u64,
    minor: u64,
}

impl VersionSkew {
    /// Compares the version of an agentk with that of a kas.
    pub fn new(kas: &str, agentk: &str) -> Self {
        Self::between(kas, agentk, LAST_MINORS)
    }

    fn between(kas: &str, agentk: &str, last_minors: &[u64]) -> Self {
        let (Some(kas), Some(agentk)) = (Minor::parse(kas), Minor::parse(agentk)) else {
            return Self::Served;
        };
        // The first version of the next major version follows a minor version that this kas does not know.
        let is_next_major = agentk == Minor { major: kas.major + 1, minor: 0 };
        match agentk {
            _ if agentk > kas.ahead(AHEAD) && !is_next_major => Self::TooNew,
            _ if agentk < kas.back(BACK, last_minors) => Self::TooOld,
            _ if agentk < kas.ahead(1).back(BACK, last_minors) => Self::Outdated,
            _ => Self::Served,
        }
    }
}

impl Minor {
    /// Reads the first two numbers of a version such as `0.1.0` or `v0.1.0-7-gabcdef`.
    fn parse(version: &str) -> Option<Self> {
        let mut numbers = version.strip_prefix('v').unwrap_or(version).splitn(3, '.');
        let mut next = || -> Option<u64> { numbers.next()?.parse::<u32>().ok().map(u64::from) };
        Some(Self { major: next()?, minor: next()? })
    }

    fn ahead(self, count: u64) -> Self {
        Self { minor: self.minor + count, ..self }
    }

    /// Returns the minor version so many ones before, or the first of all. If the last one of a major version is unknown, as to an older
    /// command line, it is the first of that.
    fn back(self, count: u64, last_minors: &[u64]) -> Self {
        if let Some(minor) = self.minor.checked_sub(count) {
            return Self { minor, ..self };
        }
        let Some(major) = self.major.checked_sub(1) else { return Self { minor: 0, ..self } };
        let last = usize::try_from(major).ok().and_then(|major| last_minors.get(major));
        last.map_or(Self { major, minor: 0 }, |&minor| {
            Self { major, minor }.back(count - self.minor - 1, last_minors)
        })
    }
}

impl std::fmt::Display for Minor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Returns the versions of agentk that a kas serves, for messages.
pub(super) fn served_versions(kas: &str) -> String {
    served_since(kas, LAST_MINORS)
}

fn served_since(kas: &str, last_minors: &[u64]) -> String {
    let kas = Minor::parse(kas).unwrap_or(Minor { major: 0, minor: 0 });
    format!("{} to {}", kas.back(BACK, last_minors), kas.ahead(AHEAD))
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
            ("0.5.0", "0.4294967295.0", VersionSkew::TooNew),
            ("0.9.0", "1.0.0", VersionSkew::Served),
            ("0.9.0", "1.1.0", VersionSkew::TooNew),
            ("0.9.0", "2.0.0", VersionSkew::TooNew),
        ] {
            assert_eq!(VersionSkew::new(kas, agentk), expected, "kas {kas}, agentk {agentk}");
        }
        assert_eq!(served_versions("0.5.2"), "0.3 to 0.6");
        assert_eq!(served_versions("0.1.0"), "0.0 to 0.2");
    }

    /// The last minor versions are 0.9, 1.0 and 2.3.
    #[test]
    fn first_versions_of_a_major_version_serve_the_last_ones_before() {
        for (kas, agentk, expected) in [
            ("1.0.0", "0.7.9", VersionSkew::TooOld),
            ("1.0.0", "0.8.0", VersionSkew::Outdated),
            ("1.0.0", "0.9.3", VersionSkew::Served),
            ("1.0.0", "1.1.0", VersionSkew::Served),
            ("1.0.0", "1.2.0", VersionSkew::TooNew),
            ("2.0.0", "0.8.9", VersionSkew::TooOld),
            ("2.0.0", "0.9.0", VersionSkew::Outdated),
            ("2.0.0", "1.0.0", VersionSkew::Served),
            ("2.1.0", "0.9.0", VersionSkew::TooOld),
            ("2.1.0", "1.0.0", VersionSkew::Outdated),
            ("3.1.0", "2.3.0", VersionSkew::Outdated),
            ("3.2.0", "2.3.0", VersionSkew::TooOld),
        ] {
            assert_eq!(VersionSkew::between(kas, agentk, &[9, 0, 3]), expected, "kas {kas}, agentk {agentk}");
        }
        assert_eq!(served_since("1.0.0", &[9]), "0.8 to 1.1");
        assert_eq!(served_since("2.0.0", &[9, 0]), "0.9 to 2.1");
    }

    /// `kas agents` of an older version marks no agentk of a newer kas by a rule that it cannot know.
    #[test]
    fn version_before_an_unknown_end_of_a_major_version_is_served() {
        assert_eq!(VersionSkew::between("1.0.0", "0.9.0", &[]), VersionSkew::Served);
        assert_eq!(VersionSkew::between("2.0.0", "0.9.0", &[]), VersionSkew::TooOld);
    }

    #[test]
    fn each_major_version_before_this_kas_has_its_last_minor_version() {
        let kas = Minor::parse(env!("CARGO_PKG_VERSION")).unwrap();
        assert_eq!(LAST_MINORS.len() as u64, kas.major);
    }

    #[test]
    fn text_that_is_no_version_is_served() {
        for text in ["", "dev", "0", "1.x.0", "-1.2.3", "0.99999999999999999999.0"] {
            assert_eq!(VersionSkew::new("0.5.0", text), VersionSkew::Served, "{text}");
        }
    }
}
