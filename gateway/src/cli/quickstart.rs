//! The command `kas quickstart`, which writes the files of a first kas and prints the next commands.

mod certificates;
mod directory;
mod host;
mod next_steps;

use std::{
    env,
    path::{Path, PathBuf},
    time::SystemTime,
};

use clap::ValueHint;
use cli::{CliError, CommandResult, print};
use kas_core::peers::NetworkEnv;
use proto::AgentName;

use self::{directory::QuickstartOptions, host::Host, next_steps::NextSteps};
use super::{ConfigFile, serve::Serve};

/// Write the files of a first kas, and print the next commands
///
/// The directory gets a certificate authority and a certificate of it for this machine, tokens for one agent and one caller,
/// identity.yaml, kas.yaml and a kubeconfig. Only this user can read the files. The printed commands run kas, install agentk in
/// the cluster, and use kubectl; they name the files of secrets, and contain none.
///
/// Existing files are never changed: for the same directory, the command prints the same lines again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Quickstart {
    /// The directory of the files, which is created if it is missing
    #[arg(
        long,
        value_name = "DIRECTORY",
        value_hint = ValueHint::DirPath,
        default_value = "kas-quickstart"
    )]
    directory: PathBuf,
    /// The names and addresses at which the cluster reaches this machine; agentk uses the first one
    ///
    /// The default is the first address of this machine that is not loopback, of IPv4 if it has one.
    #[arg(long = "host", value_name = "NAME", value_delimiter = ',')]
    hosts: Vec<Host>,
    /// The name of the agent; the default is laptop
    #[arg(long, value_name = "NAME")]
    agent: Option<AgentName>,
    /// Run kas at once, until SIGTERM or Ctrl-C
    #[arg(long)]
    run: bool,
}

const EXAMPLES: &str = "\
Examples:
  kas quickstart                          # then the commands that it prints
  kas quickstart --run                    # runs kas as well
  kas quickstart --host host.minikube.internal --agent minikube
  kas quickstart --host kas.example.com,192.0.2.7 --directory ./kas

Exit codes:
  0   the files are written, or have been written before
  64  the command line is invalid, the files were written with other flags,
      or another user can change them
  73  a file exists already, or cannot be written
  With --run, those of kas serve.";

const DEFAULT_AGENT: &str = "laptop";

impl Quickstart {
    /// Writes the files, unless they exist, and prints the commands.
    pub(super) fn run(self) -> CommandResult {
        let directory = std::path::absolute(&self.directory)
            .map_err(|error| CliError::usage(format!("--directory: {error}")))?;
        let addresses = NetworkEnv::from_process().reachable_addresses();
        let addresses: Vec<Host> = addresses.into_iter().map(Host::from).collect();
        let (options, existed) = self.prepare(&directory, &addresses)?;
        let program = env::current_exe().unwrap_or_else(|_| "kas".into());
        let next_steps = NextSteps {
            directory: &directory,
            options: &options,
            existed,
            program: &program,
            runs: self.run,
            expiry: directory::expiry(&directory)?,
            now: SystemTime::now(),
            other_addresses: other_addresses(&options, &addresses),
        };
        print(&next_steps.to_string())?;
        if !self.run {
            return Ok(());
        }
        Serve { config: ConfigFile { path: directory.join(directory::CONFIG) } }.run()
    }

    /// Returns the options of the directory, and whether it existed.
    fn prepare(&self, directory: &Path, addresses: &[Host]) -> Result<(QuickstartOptions, bool), CliError> {
        directory::check_owner(directory)?;
        if let Some(written) = directory::read_options(directory)? {
            self.check_flags(directory, &written)?;
            return Ok((written, true));
        }
        let options = self.options(addresses)?;
        directory::write(directory, &options)?;
        Ok((options, false))
    }

    /// Returns an error for flags with which the existing files were not written: their certificate has other names.
    fn check_flags(&self, directory: &Path, written: &QuickstartOptions) -> CommandResult {
        let other_agent = self.agent.as_ref().is_some_and(|agent| *agent != written.agent);
        let other_hosts = !self.hosts.is_empty() && !self.hosts.iter().eq(written.hosts());
        if !other_agent && !other_hosts {
            return Ok(());
        }
        let hosts: Vec<_> = written.hosts().map(Host::to_string).collect();
        Err(CliError::usage(format!(
            "{} was written with --agent {} --host {}, and existing files are not changed: leave out these flags, remove the \
             directory, or name another --directory",
            directory.display(),
            written.agent,
            hosts.join(",")
        )))
    }

    /// Returns the options for new files. Without `--host`, agentk uses the first of the addresses of this machine.
    fn options(&self, addresses: &[Host]) -> Result<QuickstartOptions, CliError> {
        let agent = self.agent.clone();
        let agent = agent.unwrap_or_else(|| DEFAULT_AGENT.parse().expect("it is the name of an agent"));
        let mut hosts = self.hosts.iter().cloned();
        let Some(host) = hosts.next().or_else(|| addresses.first().cloned()) else {
            let what = "this machine has no address beside loopback: name it with --host";
            return Err(CliError::usage(what));
        };
        Ok(QuickstartOptions { agent, host, other_hosts: hosts.collect() })
    }
}

/// Returns the addresses of this machine that agentk could use in place of the chosen one; none if agentk uses a name.
fn other_addresses(options: &QuickstartOptions, addresses: &[Host]) -> Vec<Host> {
    if !addresses.contains(&options.host) {
        return Vec::new();
    }
    let is_other = |address: &&Host| !options.hosts().any(|host| host == *address);
    addresses.iter().filter(is_other).cloned().collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        quickstart: Quickstart,
    }

    fn command(arguments: &str) -> Quickstart {
        Command::try_parse_from(["kas"].into_iter().chain(arguments.split_whitespace())).unwrap().quickstart
    }

    fn hosts(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn options(arguments: &str, addresses: &[&str]) -> Result<QuickstartOptions, CliError> {
        command(arguments).options(&hosts(addresses))
    }

    #[test]
    fn first_host_is_for_agentk_and_the_address_of_the_machine_is_the_default() {
        let named = options("--host kas.test,::1 --agent edge", &["192.0.2.7"]).unwrap();
        assert_eq!((named.agent.as_str(), &*named.host.to_string()), ("edge", "kas.test"));
        assert_eq!(named.other_hosts, ["::1".parse::<Host>().unwrap()]);
        let default = options("", &["192.0.2.7", "172.17.0.1"]).unwrap();
        assert_eq!((default.agent.as_str(), &*default.host.to_string()), ("laptop", "192.0.2.7"));
        assert!(options("", &[]).unwrap_err().message.contains("name it with --host"));
    }

    #[test]
    fn other_addresses_are_those_that_no_flag_names() {
        let addresses = ["192.0.2.7", "172.17.0.1", "2001:db8::7"];
        for (flags, expected) in [
            ("", "172.17.0.1 2001:db8::7"),
            ("--host 172.17.0.1,192.0.2.7", "2001:db8::7"),
            ("--host kas.test", ""),
        ] {
            let options = options(flags, &addresses).unwrap();
            let expected: Vec<_> = expected.split_whitespace().collect();
            assert_eq!(other_addresses(&options, &hosts(&addresses)), hosts(&expected), "{flags}");
        }
    }

    #[test]
    fn flags_of_a_second_run_are_those_of_the_first_one_or_none() {
        let written = options("--host a.test,b.test --agent edge", &[]).unwrap();
        let check = |flags: &str| command(flags).check_flags(Path::new("/q"), &written);
        for same in ["", "--agent edge", "--host a.test,b.test", "--host a.test --host b.test"] {
            assert!(check(same).is_ok(), "{same}");
        }
        for other in ["--agent b", "--host a.test", "--host b.test,a.test"] {
            let message = check(other).unwrap_err().message;
            assert!(
                message.starts_with("/q was written with --agent edge --host a.test,b.test, "),
                "{message}"
            );
        }
    }
}
