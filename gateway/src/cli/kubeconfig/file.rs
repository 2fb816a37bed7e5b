//! The text of a kubeconfig.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

/// The text of a kubeconfig with one cluster, one user and one context.
pub(super) struct KubeconfigText<'a> {
    pub(super) agent: &'a str,
    pub(super) caller: &'a str,
    pub(super) server: &'a str,
    /// The certificates of the authority (PEM).
    pub(super) authority: Option<&'a str>,
    pub(super) namespace: Option<&'a str>,
    pub(super) token: &'a SecretString,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct File<'a> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    clusters: [NamedCluster<'a>; 1],
    users: [NamedUser<'a>; 1],
    contexts: [NamedContext<'a>; 1],
    current_context: &'a str,
}

#[derive(Serialize)]
struct NamedCluster<'a> {
    name: &'a str,
    cluster: Cluster<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
}

#[derive(Serialize)]
struct NamedUser<'a> {
    name: &'a str,
    user: User<'a>,
}

#[derive(Serialize)]
struct User<'a> {
    token: &'a str,
}

#[derive(Serialize)]
struct NamedContext<'a> {
    name: &'a str,
    context: Context<'a>,
}

#[derive(Serialize)]
struct Context<'a> {
    cluster: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

impl fmt::Display for KubeconfigText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The user has both names, because the names of merged kubeconfigs must differ.
        let (cluster, user) = (self.agent, &*format!("{}@{}", self.caller, self.agent));
        let token = self.token.expose_secret();
        let certificate_authority_data = self.authority.map(|pem| STANDARD.encode(pem));
        let file = File {
            api_version: "v1",
            kind: "Config",
            clusters: [NamedCluster {
                name: cluster,
                cluster: Cluster { server: self.server, certificate_authority_data },
            }],
            users: [NamedUser { name: user, user: User { token } }],
            contexts: [NamedContext {
                name: self.agent,
                context: Context { cluster, user, namespace: self.namespace },
            }],
            current_context: self.agent,
        };
        // Long texts stay on one line, as in other kubeconfigs.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        f.write_str(&serde_saphyr::to_string_with_options(&file, options).expect("texts are YAML"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_has_the_form_of_kubectl() {
        let certificates = "certificates ".repeat(100);
        let entry = KubeconfigText {
            agent: "production",
            caller: "me",
            server: "https://kas.example.com:8154/agents/production/kubernetes",
            authority: Some(&certificates),
            namespace: Some("web"),
            token: &"secret".into(),
        };
        let expected = "\
apiVersion: v1
kind: Config
clusters:
- name: production
  cluster:
    server: https://kas.example.com:8154/agents/production/kubernetes
    certificate-authority-data: DATA
users:
- name: me@production
  user:
    token: secret
contexts:
- name: production
  context:
    cluster: production
    user: me@production
    namespace: web
current-context: production
";
        let expected = expected.replace("DATA", &STANDARD.encode(&certificates));
        assert_eq!(entry.to_string(), expected);
    }

    /// The name of a caller and its token may contain any text.
    #[test]
    fn special_texts_stay_texts() {
        for text in
            ["no", "on", "y", "1e3", "0x1", "null", "~", "a: b", "# x", "'\"", "a\nb", "ü", "- a", " a "]
        {
            let entry = KubeconfigText {
                agent: "a",
                caller: text,
                server: "https://kas",
                authority: None,
                namespace: Some(text),
                token: &text.into(),
            };
            let read: serde_json::Value = serde_saphyr::from_str(&entry.to_string()).unwrap();
            assert_eq!(read["users"][0]["user"]["token"], text, "{entry}");
            assert_eq!(read["contexts"][0]["context"]["namespace"], text, "{entry}");
            assert_eq!(read["users"][0]["name"], format!("{text}@a"), "{entry}");
        }
    }
}
