//! The command `kas agents manifest`, which prints the manifests of agentk for one agent.
//!
//! They are those that the chart renders: deploy/kubernetes/agentk.yaml, with a few values replaced. Other settings need the
//! chart.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{io::Read as _, path::PathBuf};

use clap::ValueHint;
use cli::{CliError, CommandResult, chart, print, shell::shell_word};
use proto::AgentName;

use crate::cli::kubeconfig::{certificates, pem};

/// The manifests, as helm renders them. CI compares this file with the chart.
const RENDERED: &str = include_str!("../../../../deploy/kubernetes/agentk.yaml");
/// The secret in the rendered manifests.
const SECRET: &str = "agentk-token";
/// The variable that names the certificates to trust. They are in the secret, whose volume has all of its keys.
const AUTHORITY: &str = "
            - name: AGENTK_KAS_CA_CERT_FILE
              value: /etc/agentk/token/ca.crt";

/// Print the manifests of agentk for an agent
///
/// The token of the agent comes from standard input, and the manifests contain it. Before them is a comment with the helm
/// command that installs the same. For proxies, a scope of namespaces and other settings, use the chart.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Manifest {
    /// The name of the agent
    #[arg(value_name = "NAME")]
    agent: AgentName,
    /// The address of kas for agents: ws(s)://host[:port][/prefix]
    #[arg(long, value_name = "URL", value_parser = chart::kas_address)]
    kas_address: String,
    /// The namespace to install agentk in
    #[arg(long, value_name = "NAMESPACE", default_value = "agentk", value_parser = chart::namespace)]
    namespace: String,
    /// The image of agentk
    #[arg(long, value_name = "IMAGE", default_value = chart::DEFAULT_IMAGE, value_parser = chart::image)]
    image: String,
    /// The certificates (PEM) that agentk trusts for kas instead of those of its image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kas_cacert: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  kas token new agent      # its hash belongs into the identity file
  kas agents manifest production --kas-address wss://kas.example.com:8150 \\
    --image registry.example.com/agentk:0.2.0 < ./token | kubectl apply -f -";

impl Manifest {
    /// Reads the token and prints the manifests.
    pub(super) fn run(&self) -> CommandResult {
        let mut text = String::new();
        let input = std::io::stdin().take(chart::MAX_AGENT_TOKEN as u64 + 2).read_to_string(&mut text);
        input.map_err(|error| {
            CliError::usage(format!("the token cannot be read from standard input: {error}"))
        })?;
        let token = token(&text).map_err(CliError::usage)?;
        let read = self.kas_cacert.as_deref().map(certificates).transpose();
        let authority = read.map_err(|error| CliError::usage(format!("--kas-cacert {error}")))?;
        print(&self.render(token, authority.and_then(|certificates| pem(&certificates)).as_deref())?)
    }

    fn render(&self, token: &str, authority: Option<&str>) -> Result<String, CliError> {
        let Self { agent, kas_address, namespace, image, kas_cacert } = self;
        let (authority, variable) = match authority {
            Some(pem) => {
                (format!("\n  ca.crt: |\n    {}", pem.trim_end().replace('\n', "\n    ")), AUTHORITY)
            }
            None => (String::new(), ""),
        };
        let (_, objects) = RENDERED.split_once("---\n").ok_or_else(|| changed("---"))?;
        let mut objects = objects.to_owned();
        let rendered_image = concat!("image: agentk:", env!("CARGO_PKG_VERSION"), "\n");
        for (placeholder, value, count) in [
            ("\"wss://kas.example.com:8150\"", format!("\"{kas_address}\"{variable}"), 1),
            (rendered_image, format!("image: {image}\n"), 1),
            ("\n  namespace: agentk\n", format!("\n  namespace: {namespace}\n"), 4),
            ("\n    namespace: agentk\n", format!("\n    namespace: {namespace}\n"), 1),
            ("\n  name: agentk:agentk:role:view\n", format!("\n  name: {namespace}:agentk:role:view\n"), 1),
        ] {
            if objects.matches(placeholder).count() != count {
                return Err(changed(placeholder));
            }
            objects = objects.replace(placeholder, &value);
        }
        let mut helm = helm_image(image);
        if let Some(file) = kas_cacert {
            let value = chart::file_value("config.kasCaCert", file);
            helm += &format!(" \\\n#     --set-file {}", shell_word(&value));
        }
        Ok(format!(
            "\
# agentk for the agent {agent}. This file contains its token.
#
# helm installs the same, if the secret {SECRET} exists and has the token:
#   helm upgrade --install agentk deploy/charts/agentk --namespace {namespace} --create-namespace \\
#     --set config.kasAddress={kas_address} --set config.secretName={SECRET}{helm}
#
# Kubernetes 1.20 has policy/v1beta1 in place of policy/v1.
---
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
---
apiVersion: v1
kind: Secret
metadata:
  name: {SECRET}
  namespace: {namespace}
stringData:
  token: \"{token}\"{authority}
---
{objects}"
        ))
    }
}

fn changed(placeholder: &str) -> CliError {
    CliError::defect(format!(
        "the built-in manifests of agentk do not have {placeholder:?} as often as expected"
    ))
}

/// Returns the end of the helm command for an image, if it is not the default.
fn helm_image(image: &str) -> String {
    match chart::image_flags(image) {
        flags if flags.is_empty() => String::new(),
        flags => format!(" \\\n#     {}", flags.join(" ")),
    }
}

/// Returns the token on the only line of a text.
fn token(text: &str) -> Result<&str, &'static str> {
    match text.trim() {
        "" => Err("standard input has no token: kas agents manifest NAME … < ./token"),
        token if token.len() > chart::MAX_AGENT_TOKEN => {
            Err("the text on standard input is too long for a token")
        }
        token if chart::is_agent_token(token) => Ok(token),
        _ => Err("the text on standard input is not a token, which is one line of visible ASCII"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(image: &str, namespace: &str) -> Manifest {
        Manifest {
            agent: "production".parse().unwrap(),
            kas_address: "wss://kas.test/agents".to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            kas_cacert: None,
        }
    }

    #[test]
    fn placeholders_are_filled_and_nothing_else_changes() {
        let text = manifest("registry.test:5000/a/agentk:1", "tools").render("s3cret", None).unwrap();
        let (_, rendered) = RENDERED.split_once("---\n").unwrap();
        let (head, objects) = text.split_once("# Source: ").unwrap();
        let objects = format!("# Source: {objects}");
        let different: Vec<(&str, &str)> =
            rendered.lines().zip(objects.lines()).filter(|(before, after)| before != after).collect();
        assert_eq!(rendered.lines().count(), objects.lines().count());
        let expected = [
            "tools",
            "tools",
            "tools",
            "tools:agentk:role:view",
            "tools",
            "tools",
            "registry.test",
            "wss://kas.test/agents",
        ];
        assert_eq!(different.len(), expected.len(), "{different:#?}");
        for ((_, after), expected) in different.into_iter().zip(expected) {
            assert!(after.contains(expected), "{after}");
        }
        assert!(head.contains("stringData:\n  token: \"s3cret\"\n"), "{head}");
        assert!(
            head.contains(
                "--namespace tools --create-namespace \\\n#     --set config.kasAddress=wss://kas.test/agents"
            ) && head
                .contains("--set image.repository=registry.test:5000/a/agentk --set-string image.tag=1\n"),
            "{head}"
        );
    }

    #[test]
    fn certificates_are_in_the_secret_that_agentk_mounts() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let manifest = Manifest { kas_cacert: Some("my ca.crt".into()), ..manifest("agentk:1", "agentk") };
        let text = manifest.render("s3cret", Some(pem)).unwrap();
        assert!(text.contains("\n#     --set-file config.kasCaCert='my ca.crt'\n"), "{text}");
        let object = |kind: &str| -> serde_json::Value {
            let mut objects = text.split("\n---\n");
            let object = objects.find(|object| object.contains(&format!("\nkind: {kind}\n"))).unwrap();
            serde_saphyr::from_str(&format!("{object}\n")).unwrap()
        };
        let data = &object("Secret")["stringData"];
        assert_eq!((data["token"].as_str(), data["ca.crt"].as_str()), (Some("s3cret"), Some(pem)));
        let pod = &object("Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["secret"]["secretName"], SECRET);
        let container = &pod["containers"][0];
        let variables = container["env"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == "AGENTK_KAS_CA_CERT_FILE");
        let file = variable.unwrap()["value"].as_str().unwrap();
        let folder = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
        assert_eq!(file, format!("{folder}/ca.crt"));
    }

    #[test]
    fn input_that_would_change_the_manifests_is_refused() {
        for bad in ["", "a b", "a\nb", "a\"", "a\\"] {
            assert!(token(bad).is_err(), "{bad:?}");
        }
        assert!(token(&"x".repeat(chart::MAX_AGENT_TOKEN + 1)).is_err());
        assert_eq!(token("abc\n"), Ok("abc"));
    }
}
