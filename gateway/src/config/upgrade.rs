//! The keys of kas.yaml that a newer version reads in another way than an older one. Pure.

use settings::KeyLocations;

/// A change of a key between two versions, for a configuration of the older one.
#[derive(Debug)]
pub struct KeyChange {
    /// The first version with the change.
    pub since: &'static str,
    /// The key, with `[]` for each element of a list.
    key: &'static str,
    /// The default of a key that the older version did not have.
    default: Option<&'static str>,
    /// The change concerns configurations with this section; all, if it is empty.
    section: &'static str,
    /// With one of these keys, the configuration is already one of the newer version.
    decided_by: &'static [&'static str],
    /// The effect, and the remedy.
    text: &'static str,
}

const BARE_NAMES: &str = "a rule of kas disable, with --fleet as well, that has a bare name means an agent of the identity file only and \
                          disables nothing for agents of GitLab: give the rules for them their ids before the update";
const EMPTY_PREFIX: &str =
    "an issuer with an empty prefix cannot have names that could be those of another issuer or of GitLab";

/// The changes of the last two minor versions. No key of 0.1.0 was renamed or removed, and none has another default.
const CHANGES: &[KeyChange] = &[
    KeyChange {
        since: "0.2.0",
        key: "private_api.allow_plaintext",
        default: Some("false"),
        section: "private_api",
        decided_by: &["private_api.allow_plaintext", "private_api.listen.certificate_file"],
        text: "replicas send nothing without TLS beyond loopback: set it to true for a network that you trust, or give \
               private_api.listen a certificate",
    },
    KeyChange {
        since: "0.2.0",
        key: "private_api",
        default: None,
        section: "private_api",
        decided_by: &[],
        text: "replicas of 0.1.0 and of this version refuse each other's requests: stop all replicas of the older version before \
               those of this one start",
    },
    KeyChange {
        since: "0.2.0",
        key: "redis",
        default: None,
        section: "redis",
        decided_by: &[],
        text: "the ACL user needs the commands of docs/redis.md, which are more: kas check-config --live tries each of them",
    },
    KeyChange {
        since: "0.2.0",
        key: "api.listen.authentication_issuer",
        default: None,
        section: "api",
        decided_by: &[],
        text: "the tokens of clients need exp, at most 10 minutes ahead, as those of GitLab have",
    },
    KeyChange {
        since: "0.2.0",
        key: "agent.listen.protocols",
        default: Some("[\"kas-tunnel.v1\",\"ws-tunnel\",\"h2\"]"),
        section: "",
        decided_by: &["agent.listen.protocols"],
        text: "GitLab's agentk may connect as well: [kas-tunnel.v1] allows agentk of kas only, as before",
    },
    KeyChange {
        since: "0.2.0",
        key: "agent.kubernetes_api.limits.unknown_credentials_per_address_per_minute",
        default: Some("60"),
        section: "",
        decided_by: &["agent.kubernetes_api.limits.unknown_credentials_per_address_per_minute"],
        text: "more unknown credentials are 429 for their address: behind a proxy, name it in \
               agent.kubernetes_api.listen.trusted_proxies",
    },
    KeyChange {
        since: "0.2.0",
        key: "agent.kubernetes_api.limits.min_body_rate",
        default: Some("256"),
        section: "",
        decided_by: &["agent.kubernetes_api.limits.min_body_rate"],
        text: "the body of a request that sends fewer bytes per second on average is 408: 0 is as before",
    },
    KeyChange {
        since: "0.2.0",
        key: "agent.kubernetes_api.stream_recheck_timeout",
        default: Some("5m"),
        section: "gitlab",
        decided_by: &["agent.kubernetes_api.stream_recheck_timeout"],
        text: "streams of jobs and users of GitLab end when GitLab has not answered about them for so long",
    },
    KeyChange {
        since: "0.2.0",
        key: "oidc.issuers[].allowed_networks",
        default: Some("[]"),
        section: "oidc.issuers[]",
        decided_by: &["oidc.issuers[].allowed_networks"],
        text: "kas connects to endpoints of the issuer with special addresses (loopback, link-local, metadata services) in these \
               networks only",
    },
    KeyChange {
        since: "0.2.0",
        key: "oidc.issuers[].stream_grace",
        default: Some("1h"),
        section: "oidc.issuers[]",
        decided_by: &["oidc.issuers[].stream_grace"],
        text: "streams end so long after their token has expired: \"off\" is as before",
    },
    KeyChange {
        since: "0.2.0",
        key: "disabled.file",
        default: None,
        section: "disabled.file",
        decided_by: &[],
        text: BARE_NAMES,
    },
    KeyChange {
        since: "0.2.0",
        key: "redis",
        default: None,
        section: "redis",
        decided_by: &[],
        text: BARE_NAMES,
    },
    KeyChange {
        since: "0.2.0",
        key: "oidc.issuers[].username_prefix",
        default: None,
        section: "oidc.issuers[].username_prefix",
        decided_by: &[],
        text: EMPTY_PREFIX,
    },
    KeyChange {
        since: "0.2.0",
        key: "oidc.issuers[].groups_prefix",
        default: None,
        section: "oidc.issuers[].groups_prefix",
        decided_by: &[],
        text: EMPTY_PREFIX,
    },
    KeyChange {
        since: "0.2.0",
        key: "gitlab.api_rate_limit",
        default: None,
        section: "gitlab.api_rate_limit",
        decided_by: &[],
        text: "each of five kinds of requests has a fifth of the rate while its requests wait: raise a rate that is only just enough",
    },
];

/// Returns the changes that concern a configuration, each with the key and its place in the list of its section.
pub fn key_changes(file: &KeyLocations) -> Vec<(String, &'static KeyChange)> {
    CHANGES.iter().flat_map(|change| change.keys(file).into_iter().map(move |key| (key, change))).collect()
}

impl KeyChange {
    /// Returns the sentence about the change.
    pub fn sentence(&self) -> String {
        let (since, text) = (self.since, self.text);
        match self.default {
            Some(default) => format!("new in {since} with the default {default}: {text}"),
            None => format!("since {since}, {text}"),
        }
    }

    /// Returns the key once for each section of the file that the change concerns.
    fn keys(&self, file: &KeyLocations) -> Vec<String> {
        let sections = match self.section {
            "" => vec![String::new()],
            section => file.matching(section),
        };
        let within = |section: &str, key: &str| key.replacen(self.section, section, 1);
        let is_decided = |section: &String| self.decided_by.iter().any(|key| file.has(&within(section, key)));
        sections
            .into_iter()
            .filter(|section| !is_decided(section))
            .map(|section| within(&section, self.key))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn keys(text: &str) -> Vec<String> {
        key_changes(&KeyLocations::parse(text)).into_iter().map(|(key, _)| key).collect()
    }

    const ALWAYS: [&str; 3] = [
        "agent.listen.protocols",
        "agent.kubernetes_api.limits.unknown_credentials_per_address_per_minute",
        "agent.kubernetes_api.limits.min_body_rate",
    ];

    #[test]
    fn change_concerns_files_with_its_section_and_without_its_key() {
        assert_eq!(keys("identity: {file: i}"), ALWAYS);
        let replicas = keys("private_api: {listen: {address: a}}\nredis: {}");
        assert_eq!(replicas[..3], ["private_api.allow_plaintext", "private_api", "redis"]);
        for decided in ["{allow_plaintext: true}", "{listen: {certificate_file: c}}"] {
            assert_eq!(keys(&format!("private_api: {decided}"))[0], "private_api", "{decided}");
        }
        assert_eq!(keys("redis: {}"), ["redis", ALWAYS[0], ALWAYS[1], ALWAYS[2], "redis"]);
        let limits = "agent: {kubernetes_api: {limits: {min_body_rate: 0}}}";
        assert_eq!(keys(limits), ALWAYS[..2]);
    }

    #[test]
    fn each_element_of_a_list_is_concerned_by_itself() {
        let text = "oidc: {issuers: [{name: a, stream_grace: 1h}, {name: b, allowed_networks: []}]}";
        let expected = ["oidc.issuers[0].allowed_networks", "oidc.issuers[1].stream_grace"];
        assert_eq!(keys(text)[3..], expected);
        let prefixes = keys("oidc: {issuers: [{username_prefix: ''}, {groups_prefix: ''}]}");
        let expected = ["oidc.issuers[0].username_prefix", "oidc.issuers[1].groups_prefix"];
        assert!(prefixes.ends_with(&expected.map(str::to_owned)), "{prefixes:?}");
    }

    /// Returns the keys in the table of the upgrade guide. The first cell of a row has one, or several.
    fn guide_keys() -> BTreeSet<&'static str> {
        let guide = include_str!("../../../docs/upgrade.md");
        let cells = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
        cells.flat_map(|cell| cell.split('`').step_by(2)).filter(|key| !key.trim().is_empty()).collect()
    }

    #[test]
    fn keys_and_defaults_are_documented() {
        let keys: BTreeSet<&str> = CHANGES.iter().map(|change| change.key).collect();
        assert_eq!(keys, guide_keys(), "each key of the table in docs/upgrade.md has an entry here");
        let reference = include_str!("../../../docs/configuration.md");
        for change in CHANGES {
            let Some(default) = change.default else { continue };
            let row = format!("| `{}` |", change.key);
            let row = reference.lines().find(|line| line.starts_with(&row)).expect(change.key);
            assert!(row.contains(&format!("| `{default}`")), "{default}: {row}");
        }
    }

    #[test]
    fn sentence_has_the_version_and_the_default() {
        let sentences: Vec<_> = CHANGES.iter().map(KeyChange::sentence).collect();
        assert!(
            sentences[0].starts_with("new in 0.2.0 with the default false: replicas send"),
            "{sentences:?}"
        );
        assert!(sentences[1].starts_with("since 0.2.0, replicas of 0.1.0"), "{sentences:?}");
    }
}
