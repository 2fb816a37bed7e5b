//! The commands after `kas quickstart`. They name the files of secrets.

use std::{fmt, path::Path};

use cli::{
    chart,
    shell::{shell_argument, shell_word},
};

use super::{
    certificates::VALID_DAYS,
    directory::{AGENT_TOKEN, AUTHORITY, CONFIG, FILES, KUBECONFIG, QuickstartOptions},
};

/// The chart in a checkout of the repository of kas.
const CHART: &str = "deploy/charts/agentk";

/// The text for a directory.
pub(super) struct NextSteps<'a> {
    /// The absolute path of the directory.
    pub(super) directory: &'a Path,
    pub(super) options: &'a QuickstartOptions,
    /// True if an earlier run has written the files.
    pub(super) existed: bool,
}

impl NextSteps<'_> {
    /// Returns the path of a file, for a shell.
    fn file(&self, name: &str) -> String {
        shell_argument(&self.directory.join(name).display().to_string())
    }

    /// Returns a flag of helm that reads a value from a file.
    fn set_file(&self, key: &str, name: &str) -> String {
        format!("--set-file {}", shell_word(&chart::file_value(key, &self.directory.join(name))))
    }
}

impl fmt::Display for NextSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuickstartOptions { agent, host, .. } = self.options;
        let (directory, kas) = (self.directory.display(), format!("wss://{}:8150", host.in_url()));
        let (kas_argument, kas_value) =
            (shell_argument(&kas), shell_word(&format!("config.kasAddress={kas}")));
        let [config, authority, token, kubeconfig] =
            [CONFIG, AUTHORITY, AGENT_TOKEN, KUBECONFIG].map(|name| self.file(name));
        let [token_value, authority_value] = [("config.token", AGENT_TOKEN), ("config.kasCaCert", AUTHORITY)]
            .map(|(key, name)| self.set_file(key, name));
        let (written, image, files) = (
            if self.existed { "exists, and nothing in it was changed" } else { "has the files of kas" },
            chart::DEFAULT_IMAGE,
            FILES.join(", "),
        );
        write!(
            f,
            "\
{directory} {written}:
  {files}
Its certificates are valid for {VALID_DAYS} days after they were made.

Run kas on this machine:

  kas serve --config {config}

Install agentk, which connects to {kas}, in a checkout of the repository of kas. The cluster needs the image
{image}: docs/install.md has the ways to make it, and deploy/quickstart does it for kind, k3d and minikube.

  helm upgrade --install agentk {CHART} --namespace agentk --create-namespace \\
    --set {kas_value} \\
    {token_value} \\
    {authority_value}

Or run agentk on this machine, for the cluster of your kubeconfig:

  agentk --kas-address {kas_argument} --token-file {token} \\
    --kas-ca-cert-file {authority}

Then send requests through kas. The second command adds the context {agent} to your kubeconfig for this shell:

  kubectl --kubeconfig {kubeconfig} get pods --all-namespaces
  export KUBECONFIG=${{KUBECONFIG:-$HOME/.kube/config}}:{kubeconfig}
  kubectl config use-context {agent}

The connected agents:

  kas agents --config {config}
"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(directory: &str, host: &str, existed: bool) -> String {
        let options = QuickstartOptions {
            agent: "edge".parse().unwrap(),
            host: host.parse().unwrap(),
            other_hosts: Vec::new(),
        };
        NextSteps { directory: Path::new(directory), options: &options, existed }.to_string()
    }

    #[test]
    fn commands_name_the_files_and_the_address() {
        let text = text("/home/me/q", "2001:db8::7", false);
        for expected in [
            "/home/me/q has the files of kas:\n",
            "kas serve --config /home/me/q/kas.yaml\n",
            "--set config.kasAddress='wss://[2001:db8::7]:8150' \\\n",
            "--set-file config.token=/home/me/q/agent-token \\\n",
            "--set-file config.kasCaCert=/home/me/q/ca.crt\n",
            "--kas-ca-cert-file /home/me/q/ca.crt\n",
            "kubectl config use-context edge\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn second_run_prints_the_same_commands() {
        let commands = |existed| {
            let text = text("/q", "kas.test", existed);
            let (first, rest) = text.split_once('\n').unwrap();
            (first.to_owned(), rest.to_owned())
        };
        let ((first, commands_then), (second, commands_now)) = (commands(false), commands(true));
        assert!(first != second && second.contains("nothing in it was changed"), "{second}");
        assert_eq!(commands_then, commands_now);
    }

    #[test]
    fn path_with_special_characters_is_one_argument() {
        let text = text("/my, files", "kas.test", false);
        assert!(text.contains("--config '/my, files/kas.yaml'\n"), "{text}");
        // helm ends a value at a comma.
        assert!(text.contains(r"--set-file config.token=$'/my\134, files/agent-token'"), "{text}");
    }
}
