//! Manifests from real Git servers: https with TLS and a password, and the sshd of OpenSSH. A failed read deletes no object.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::support::{Certificates, GitServer, SshServer, new_ssh_key};

/// A file with a credential, which kas reads for each exchange.
struct Credential {
    file: PathBuf,
    valid: Vec<u8>,
}

impl Credential {
    fn new(file: &Path, valid: impl Into<Vec<u8>>) -> Self {
        let credential = Self { file: file.to_owned(), valid: valid.into() };
        credential.write(&credential.valid);
        credential
    }

    fn write(&self, content: &[u8]) {
        let next = self.file.with_extension("next");
        fs::write(&next, content).unwrap();
        fs::set_permissions(&next, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(next, &self.file).unwrap();
    }
}

impl World {
    /// Commits objects, pushes them with `push`, and waits until the cluster has them.
    fn deploy(&self, push: &dyn Fn(&str), names: &[&str]) {
        self.configure("ref: {branch: release}", &[("manifests/app.yaml", Some(&config_maps(names)))]);
        push("main");
        push("main:release");
        eventually("the push arrives in the cluster", || self.config_maps() == names.join(" "));
        self.wait_for_state("synced");
    }

    /// Waits until the project has failed for a reason, and checks that nothing was deleted.
    fn wait_for_failure(&self, reason: &str, names: &str) {
        eventually(&format!("the status says: {reason}"), || {
            let status = self.status();
            status["state"] == "failed" && status["message"].as_str().unwrap().contains(reason)
        });
        assert_eq!(self.config_maps(), names);
    }

    /// Tries wrong credentials, and a branch that is deleted.
    fn survive_broken_sources(&self, push: &dyn Fn(&str), broken: &[(&Credential, &[u8], &str)]) {
        self.deploy(push, &["a", "b"]);
        for (credential, wrong, reason) in broken {
            credential.write(wrong);
            self.wait_for_failure(reason, "a b");
            credential.write(&credential.valid);
            self.wait_for_state("synced");
        }
        push(":release");
        self.wait_for_failure("the repository has no branch \"release\"", "a b");
        self.deploy(push, &["b", "c"]);
    }
}

#[test]
fn pushes_to_an_https_server_arrive_in_the_cluster() {
    let directory = TempDir::new().unwrap();
    let certificates = Certificates::generate(directory.path());
    let Some(server) = GitServer::or_skip(directory.path(), &certificates, "secret") else { return };
    let password = Credential::new(&directory.path().join("password"), "secret\n");
    let remote = json!({
        "url": server.url, "username": "kas", "password_file": password.file,
        "ca_certificate_file": certificates.authority,
    });
    let Some(mut world) = World::start_or_skip("gitops-https", |options, _| {
        options.configuration = Some(json!({"poll_period": "1s", "repository": remote}));
    }) else {
        return;
    };
    world.project = "agents".to_owned();
    let push = |refspec: &str| world.repository.push_refspec(&server, refspec);
    world.survive_broken_sources(&push, &[(&password, b"wrong\n", "it refuses the credentials")]);
    let log = world.installation.kas.process.printed();
    assert!(!log.contains("wrong") && !log.contains("secret\\n"), "the log has no password");
}

#[test]
fn pushes_to_an_ssh_server_arrive_in_the_cluster() {
    let directory = TempDir::new().unwrap();
    let Some(server) = SshServer::or_skip(directory.path()) else { return };
    let key = Credential::new(&directory.path().join("key"), fs::read(&server.client_key).unwrap());
    let hosts = Credential::new(&directory.path().join("known_hosts"), &*server.known_host);
    let remote = json!({"url": server.url, "ssh_key_file": key.file, "ssh_known_hosts_file": hosts.file});
    let Some(mut world) = World::start_or_skip("gitops-ssh", |options, _| {
        options.configuration = Some(json!({"poll_period": "1s", "repository": remote}));
    }) else {
        return;
    };
    let other = new_ssh_key(directory.path(), "other");
    let other_key = fs::read(&other).unwrap();
    let public = fs::read_to_string(other.with_extension("pub")).unwrap();
    let (host, _) = server.known_host.split_once(' ').unwrap();
    let other_host = format!("{host} {public}");
    world.project = server.bare.with_extension("").display().to_string().trim_start_matches('/').to_owned();
    let push = |refspec: &str| world.repository.push_to(&server.bare, refspec);
    world.survive_broken_sources(
        &push,
        &[
            (&key, &other_key, "Permission denied"),
            (&hosts, b"", "Host key verification failed"),
            (&hosts, other_host.as_bytes(), "Host key verification failed"),
        ],
    );
}
