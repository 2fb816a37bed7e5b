//! The version of the kubectl on the `PATH`. Tests run with every version, and skip the features that it lacks.

use std::{
    fmt::{self, Display, Formatter},
    process::Command,
    str::FromStr,
    sync::OnceLock,
};

use serde_json::Value;
use testing::skip::skipped_by_version;

use super::run;

/// A version of kubectl, as major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KubectlVersion(u32, u32);

impl KubectlVersion {
    /// The first version whose exec uses WebSocket by default.
    pub(crate) const WEBSOCKET_EXEC: Self = Self(1, 30);
    /// The first version whose port-forward uses WebSocket by default.
    pub(crate) const WEBSOCKET_PORT_FORWARD: Self = Self(1, 31);
    /// The first version whose `--raw` keeps the path of the server's URL.
    const RAW_KEEPS_SERVER_PATH: Self = Self(1, 34);
    /// The first version whose proxy sends the host of the server.
    pub(crate) const PROXY_SENDS_SERVER_HOST: Self = Self(1, 23);
    /// A version whose diff masks the values of Secrets, which that of 1.20 shows.
    pub(crate) const DIFF_MASKS_SECRETS: Self = Self(1, 22);
    /// The first version with `kubectl wait --for=jsonpath`.
    pub(crate) const WAIT_FOR_JSONPATH: Self = Self(1, 23);

    /// Returns the version of the kubectl on the `PATH`.
    pub(crate) fn installed() -> Self {
        static INSTALLED: OnceLock<KubectlVersion> = OnceLock::new();
        *INSTALLED.get_or_init(|| {
            let mut kubectl = Command::new("kubectl");
            let output = run(kubectl.args(["version", "--client", "--output=json"]), b"");
            let version: Value = serde_json::from_slice(&output.stdout).unwrap();
            let [major, minor] =
                ["major", "minor"].map(|number| version["clientVersion"][number].as_str().unwrap());
            format!("{major}.{minor}").parse().unwrap()
        })
    }

    /// Returns the prefix that a path of `--raw` needs for a server whose URL has this path.
    pub(crate) fn raw_prefix(server_path: &str) -> &str {
        if Self::installed() >= Self::RAW_KEEPS_SERVER_PATH { "" } else { server_path }
    }

    /// Returns whether the kubectl on the `PATH` has at least this version, and reports the skipped `part` if not.
    pub(crate) fn or_skip(self, part: &str) -> bool {
        let installed = Self::installed();
        let has = installed >= self;
        if !has {
            skipped_by_version(&format!("{part}: needs kubectl >= {self}, this is {installed}"));
        }
        has
    }
}

impl FromStr for KubectlVersion {
    type Err = String;

    /// Vendors add a plus sign to the minor number of their builds.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.trim_end_matches('+').split_once('.');
        numbers
            .and_then(|(major, minor)| Some(Self(major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| format!("{text:?} is no version such as 1.20"))
    }
}

impl Display for KubectlVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[test]
fn versions_are_compared_by_number() {
    let version = |text: &str| text.parse::<KubectlVersion>().unwrap();
    assert!(version("1.9") < version("1.20") && version("1.20") < version("1.32+"));
    assert_eq!(version("1.32+").to_string(), "1.32");
    assert!("1".parse::<KubectlVersion>().is_err() && "1.x".parse::<KubectlVersion>().is_err());
}
