//! Several replicas of kas, and agents at those of them that a test wants.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    AGENT, Agent, AgentOptions, Kas, KasOptions, Kubectl, Reply, Tokens, eventually,
    kas::{Membership, bearer},
    kubeconfig,
    world::unreachable_cluster,
};

/// What all replicas share. They are the test's, to be killed as it likes.
pub(crate) struct Fleet {
    /// How replicas are started.
    pub(crate) options: KasOptions,
    /// Who may connect.
    pub(crate) tokens: Tokens,
    /// How agents are started; each has one tunnel.
    pub(crate) agent_options: AgentOptions,
    directory: TempDir,
    started: AtomicUsize,
}

impl Fleet {
    /// Nothing runs yet. `redis` is that section of the configuration; the agents' cluster is that of `kubeconfig`.
    pub(crate) fn new(redis: Value, kubeconfig: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::make();
        let membership = Membership {
            redis,
            secret: secret(directory.path(), "secret"),
            private: "127.0.0.1".into(),
            private_grace: None,
            network: None,
        };
        let options =
            KasOptions { shutdown_grace: 30, membership: Some(membership), ..KasOptions::default() };
        let agent_options = AgentOptions {
            kas: String::new(),
            kas_authority: None,
            token: tokens.agent.expose_secret().to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            prometheus: None,
            policy: None,
            collector: None,
            tunnels: 1,
            grace: 25,
            network: None,
        };
        Self { options, tokens, agent_options, directory, started: AtomicUsize::new(0) }
    }

    /// The same, and the agents' cluster cannot be reached: they say so.
    pub(crate) fn without_cluster(redis: Value) -> Self {
        let mut fleet = Self::new(redis, Path::new(""));
        fleet.agent_options.kubeconfig = unreachable_cluster(fleet.directory());
        fleet
    }

    /// What makes the next replica one of several.
    pub(crate) fn membership(&mut self) -> &mut Membership {
        self.options.membership.as_mut().unwrap()
    }

    /// Starts a replica.
    pub(crate) fn replica(&self) -> Kas {
        let directory = self.subdirectory("kas");
        self.tokens.write_identity(&directory, false);
        Kas::start(&directory, &self.options)
    }

    /// Starts some, and waits until Redis knows them.
    pub(crate) fn replicas<const COUNT: usize>(&self) -> [Kas; COUNT] {
        let all = [(); COUNT].map(|()| self.replica());
        for replica in &all {
            eventually("Redis is in use", || replica.readiness().text() == "ready\n");
        }
        all
    }

    /// Starts an agentk beside this replica that has one tunnel, to it, and waits for that.
    pub(crate) fn agent_at(&self, replica: &Kas) -> Agent {
        let before = replica.metric("kas_tunnels");
        let (kas, network) = (replica.agent_url(&self.options), replica.network.clone());
        let options = AgentOptions { kas, network, ..self.agent_options.clone() };
        let agent = self.agent(&options);
        eventually("the tunnel is open", || replica.metric("kas_tunnels") > before);
        agent
    }

    /// Starts an agentk.
    pub(crate) fn agent(&self, options: &AgentOptions) -> Agent {
        Agent::start(&self.subdirectory("agent"), options)
    }

    /// Asks a replica for the version of the agent's cluster.
    pub(crate) fn ask(&self, replica: &Kas) -> Reply {
        self.get(replica, &format!("/agents/{AGENT}/kubernetes/version"))
    }

    /// Asks a replica for a path.
    pub(crate) fn get(&self, replica: &Kas, path: &str) -> Reply {
        replica.curl(&["--header", &bearer(&self.tokens.ops), &replica.url(path)])
    }

    /// kubectl of a caller who acts as the agent, at a replica or in front of all.
    pub(crate) fn kubectl(&self, server: SocketAddr) -> Kubectl {
        let (path, directory) = (format!("/agents/{AGENT}/kubernetes"), self.subdirectory("kubectl"));
        let authority = &self.options.public_tls.as_ref().expect("kubectl wants TLS").authority;
        let token = self.tokens.ops.expose_secret();
        let url = format!("https://{server}{path}");
        let file = kubeconfig::write(directory.join("kubeconfig"), &url, Some(authority), token);
        Kubectl::new("fleet", &path, file, &directory)
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn subdirectory(&self, name: &str) -> PathBuf {
        let number = self.started.fetch_add(1, Relaxed);
        let directory = self.directory().join(format!("{name}-{number}"));
        fs::create_dir(&directory).unwrap();
        directory
    }
}

/// A file with a new secret of replicas.
pub(crate) fn secret(directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, BASE64_STANDARD.encode(rand::random::<[u8; 32]>())).unwrap();
    file
}

/// Four callers ask again and again while `story` happens, and all of their answers. The story is given a way to wait
/// until twenty more requests have been answered.
pub(crate) fn flow(ask: impl Fn() -> Reply + Sync, story: impl FnOnce(&dyn Fn())) -> Vec<Reply> {
    /// Ends the callers even if the story fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let asking = || {
        let mut replies = Vec::new();
        while !done.load(Relaxed) {
            replies.push(ask());
            answered.fetch_add(1, Relaxed);
        }
        replies
    };
    let more = || {
        let before = answered.load(Relaxed);
        eventually("requests are answered", || answered.load(Relaxed) >= before + 20);
    };
    thread::scope(|scope| {
        let callers = [(); 4].map(|()| scope.spawn(asking));
        let end = End(&done);
        more();
        story(&more);
        drop(end);
        callers.map(|caller| caller.join().unwrap()).concat()
    })
}
