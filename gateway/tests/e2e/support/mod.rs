//! Fixtures of the tests: the programs as processes, and their clients.

mod agent;
mod cluster;
mod curl;
mod fleet;
mod git;
mod gitlab;
mod hubble;
mod installation;
mod kas;
mod kubeconfig;
mod kubectl;
mod networks;
mod oidc;
mod prometheus;
mod proxy;
mod recorder;
mod redis;
mod relay;
mod simulator;
mod stop_guard;
mod tls;
mod version;

pub(crate) use testing::{
    process::{Process, code, eventually, run},
    skip::skipped,
};

pub(crate) use self::{
    agent::{Agent, AgentOptions, default_tunnels},
    cluster::{Cluster, Namespace, path_argument, pod_manifest},
    curl::{HttpResponse, curl, curl_in},
    fleet::{Fleet, run_under_load, write_secret},
    git::{GitRepository, GitServer, SshServer, new_ssh_key},
    gitlab::GitLab,
    hubble::Hubble,
    installation::{AGENT, Installation, kubeconfig_of},
    kas::{Kas, KasOptions, Membership, Tokens, command_in_network},
    kubectl::{Kubectl, assert_same_output, is_age, normalize},
    networks::{NetworkNamespaces, namespace_address, run_in_network},
    oidc::OidcProvider,
    prometheus::{Prometheus, PrometheusServer},
    proxy::{Proxy, ProxyHost},
    recorder::{RecordedRequest, RecordingServer},
    redis::{Redis, Sentinel, socket_section},
    relay::{Link, LoadBalancer, start_delayed_socket},
    simulator::Simulator,
    stop_guard::StopGuard,
    tls::Certificates,
    version::KubectlVersion,
};
