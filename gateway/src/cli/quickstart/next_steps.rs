//! The commands after `kas quickstart`. They name the files of secrets.

use std::{fmt, path::Path, time::SystemTime};

use cli::{
    chart,
    shell::{shell_argument, shell_word},
};

use super::{
    directory::{AGENT_TOKEN, AUTHORITY, CONFIG, FILES, KUBECONFIG, QuickstartOptions},
    host::Host,
};

/// The chart in a checkout of the repository of kas.
const CHART: &str = "deploy/charts/agentk";
/// The address of kas for agentk on the same machine. Each certificate has this name.
const LOCAL_ADDRESS: &str = "wss://localhost:8150";
/// The listener of agentk on the same machine. Its default is on all interfaces.
const AGENTK_OBSERVABILITY: &str = "127.0.0.1:8080";

/// The text for a directory.
pub(super) struct NextSteps<'a> {
    /// The absolute path of the directory.
    pub(super) directory: &'a Path,
    pub(super) options: &'a QuickstartOptions,
    /// True if an earlier run has written the files.
    pub(super) existed: bool,
    /// The path of this program.
    pub(super) program: &'a Path,
    /// True if this process runs kas.
    pub(super) runs: bool,
    /// The time at which the certificate of kas expires.
    pub(super) expiry: SystemTime,
    pub(super) now: SystemTime,
    /// The addresses of this machine that agentk could use in place of the chosen one.
    pub(super) other_addresses: Vec<Host>,
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

    /// Returns the sentences about the certificates and the addresses.
    fn notes(&self) -> String {
        let expiry = humantime::format_rfc3339_seconds(self.expiry);
        let directory = self.directory.display();
        let mut notes = if self.expiry <= self.now {
            format!(
                "Its certificates expired at {expiry}, so that agentk and kubectl refuse them: remove {directory}, run this again, and \
                 install agentk with the new token."
            )
        } else {
            format!("Its certificates are valid until {expiry}.")
        };
        if !self.other_addresses.is_empty() {
            let others: Vec<_> = self.other_addresses.iter().map(Host::to_string).collect();
            notes += &format!(
                "\nagentk connects to {}. This machine has other addresses, too: {}. To use one of them, remove\n{directory}, and \
                 name the address with --host.",
                self.options.host,
                others.join(", ")
            );
        }
        notes
    }

    /// Returns the step that runs kas, unless this process does.
    fn serve(&self, program: &str, config: &str) -> String {
        if self.runs {
            return String::new();
        }
        format!(
            "Run kas on this machine. Agents reach port 8150 on all of its interfaces:\n\n  {program} serve --config {config}\n\n"
        )
    }
}

impl fmt::Display for NextSteps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuickstartOptions { agent, host, .. } = self.options;
        let (directory, kas) = (self.directory.display(), format!("wss://{}:8150", host.in_url()));
        let kas_value = shell_word(&format!("config.kasAddress={kas}"));
        let kas_address = shell_argument(&kas);
        let program = shell_argument(&self.program.display().to_string());
        let [config, authority, token, kubeconfig] =
            [CONFIG, AUTHORITY, AGENT_TOKEN, KUBECONFIG].map(|name| self.file(name));
        let [token_value, authority_value] = [("config.token", AGENT_TOKEN), ("config.kasCaCert", AUTHORITY)]
            .map(|(key, name)| self.set_file(key, name));
        let (written, image, files) = (
            if self.existed { "exists, and nothing in it was changed" } else { "has the files of kas" },
            chart::DEFAULT_IMAGE,
            FILES.join(", "),
        );
        let (notes, serve) = (self.notes(), self.serve(&program, &config));
        write!(
            f,
            "\
{directory} {written}:
  {files}
{notes}

{serve}\
Install agentk, which connects to {kas}, in a checkout of the repository of kas. helm uses the current context of
your own kubeconfig, and not the kubeconfig of kas. The cluster needs the image {image}: docs/install.md has the ways to
make it, and deploy/quickstart does it for kind, k3d and minikube.

  helm upgrade --install agentk {CHART} --namespace agentk --create-namespace \\
    --set {kas_value} \\
    {token_value} \\
    {authority_value}

Or install it without helm and without a checkout. The manifests have the token, so that they are passed on without a file:

  {program} agents manifest {agent} --kas-address {kas_address} --kas-cacert {authority} \\
    < {token} | kubectl apply -f -

Or run agentk on this machine, for the cluster of your own kubeconfig:

  agentk --kas-address {LOCAL_ADDRESS} --token-file {token} \\
    --kas-ca-cert-file {authority} \\
    --observability-listen-address {AGENTK_OBSERVABILITY}

Then send requests through kas. This kubeconfig has the context {agent} only:

  kubectl --kubeconfig {kubeconfig} get pods --all-namespaces

Other programs, such as helm, use kas in a shell of its own with

  export KUBECONFIG={kubeconfig}

The connected agents:

  {program} agents --config {config}
"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn text(directory: &str, host: &str, existed: bool) -> String {
        text_with(directory, host, |steps| steps.existed = existed)
    }

    fn text_with(directory: &str, host: &str, edit: impl FnOnce(&mut NextSteps<'_>)) -> String {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let options = QuickstartOptions {
            agent: "edge".parse().unwrap(),
            host: host.parse().unwrap(),
            other_hosts: Vec::new(),
        };
        let mut steps = NextSteps {
            directory: Path::new(directory),
            options: &options,
            existed: false,
            program: Path::new("/usr/bin/kas"),
            runs: false,
            expiry: now + Duration::from_secs(3600),
            now,
            other_addresses: Vec::new(),
        };
        edit(&mut steps);
        steps.to_string()
    }

    #[test]
    fn commands_name_the_files_and_the_address() {
        let text = text("/home/me/q", "2001:db8::7", false);
        for expected in [
            "/home/me/q has the files of kas:\n",
            "are valid until 2027-01-15T09:00:00Z.\n",
            "/usr/bin/kas serve --config /home/me/q/kas.yaml\n",
            "/usr/bin/kas agents --config /home/me/q/kas.yaml\n",
            "--set config.kasAddress='wss://[2001:db8::7]:8150' \\\n",
            "--set-file config.token=/home/me/q/agent-token \\\n",
            "--set-file config.kasCaCert=/home/me/q/ca.crt\n",
            "/usr/bin/kas agents manifest edge --kas-address 'wss://[2001:db8::7]:8150' --kas-cacert /home/me/q/ca.crt \\\n",
            "    < /home/me/q/agent-token | kubectl apply -f -\n",
            "agentk --kas-address wss://localhost:8150 --token-file /home/me/q/agent-token \\\n",
            "--kas-ca-cert-file /home/me/q/ca.crt \\\n",
            "--observability-listen-address 127.0.0.1:8080\n",
            "kubectl --kubeconfig /home/me/q/kubeconfig get pods",
            "  export KUBECONFIG=/home/me/q/kubeconfig\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        // It would change the current context of the user's own kubeconfig.
        assert!(!text.contains("use-context") && !text.contains(".kube/config"), "{text}");
    }

    #[test]
    fn text_names_the_state_of_the_certificate_and_other_addresses() {
        let expired = text_with("/q", "192.0.2.7", |steps| steps.expiry = steps.now);
        let expected = "expired at 2027-01-15T08:00:00Z, so that agentk and kubectl refuse them: remove /q,";
        assert!(expired.contains(expected), "{expired}");
        let others: [Host; 2] = ["172.17.0.1", "2001:db8::7"].map(|host| host.parse().unwrap());
        let text = text_with("/q", "192.0.2.7", |steps| steps.other_addresses = others.to_vec());
        assert!(text.contains("other addresses, too: 172.17.0.1, 2001:db8::7. To use"), "{text}");
    }

    #[test]
    fn kas_that_runs_already_is_no_step() {
        let text = text_with("/q", "kas.test", |steps| steps.runs = true);
        assert!(!text.contains("Run kas on this machine") && text.contains("\n\nInstall agentk"), "{text}");
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
