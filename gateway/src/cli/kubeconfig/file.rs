//! The text of a kubeconfig.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

/// The text of a kubeconfig with one cluster, one user and one context.
pub(in crate::cli) struct KubeconfigText<'a> {
    pub(in crate::cli) agent: &'a str,
    pub(in crate::cli) caller: &'a str,
    pub(in crate::cli) server: &'a str,
    /// The certificates of the authority (PEM).
    pub(in crate::cli) authority: Option<&'a str>,
    pub(in crate::cli) namespace: Option<&'a str>,
    pub(in crate::cli) credential: UserCredential<'a>,
}

/// The credential of the user.
pub(in crate::cli) enum UserCredential<'a> {
    /// The token of a caller.
    Token(&'a SecretString),
    /// The arguments of `kas`, which kubectl runs to get a token.
    Exec(&'a [String]),
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
#[serde(rename_all = "lowercase")]
enum User<'a> {
    Token(&'a str),
    Exec(Exec<'a>),
}

/// A credential plugin.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Exec<'a> {
    api_version: &'static str,
    command: &'static str,
    args: &'a [String],
    install_hint: &'static str,
    provide_cluster_info: bool,
    interactive_mode: &'static str,
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
        let credential = match self.credential {
            UserCredential::Token(token) => User::Token(token.expose_secret()),
            UserCredential::Exec(args) => User::Exec(Exec {
                // Every version of kubectl since 1.20 supports it, and old ones do not support v1.
                api_version: "client.authentication.k8s.io/v1beta1",
                command: "kas",
                args,
                install_hint: "Install kas and put it on the PATH. kas login gets the token for this cluster.",
                provide_cluster_info: false,
                interactive_mode: "IfAvailable",
            }),
        };
        let certificate_authority_data = self.authority.map(|pem| STANDARD.encode(pem));
        let file = File {
            api_version: "v1",
            kind: "Config",
            clusters: [NamedCluster {
                name: cluster,
                cluster: Cluster { server: self.server, certificate_authority_data },
            }],
            users: [NamedUser { name: user, user: credential }],
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
            credential: UserCredential::Token(&"secret".into()),
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

    #[test]
    fn plugin_has_the_form_of_kubectl() {
        let args = ["login", "--issuer", "https://dex.example.com"].map(str::to_owned);
        let entry = KubeconfigText {
            agent: "a",
            caller: "dex",
            server: "https://kas",
            authority: None,
            namespace: None,
            credential: UserCredential::Exec(&args),
        };
        let expected = "\
users:
- name: dex@a
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: kas
      args:
      - login
      - --issuer
      - https://dex.example.com
      installHint: Install kas and put it on the PATH. kas login gets the token for this cluster.
      provideClusterInfo: false
      interactiveMode: IfAvailable
contexts:
";
        assert!(entry.to_string().contains(expected), "{entry}");
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
                credential: UserCredential::Token(&text.into()),
            };
            let read: serde_json::Value = serde_saphyr::from_str(&entry.to_string()).unwrap();
            assert_eq!(read["users"][0]["user"]["token"], text, "{entry}");
            assert_eq!(read["contexts"][0]["context"]["namespace"], text, "{entry}");
            assert_eq!(read["users"][0]["name"], format!("{text}@a"), "{entry}");
        }
    }
}
