//! Events while the request of a case runs, and their effects for the caller.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use super::{
    callers,
    requests::{self, Failure, Running},
    support::{Kas, eventually, run},
    values::{AgentKind, Event, Policy, Request},
    world::World,
};

/// A policy of agentk without limits.
const ALLOW_ALL: &str = "rules:
- {name: all, action: allow, services: ['*']}
- {name: anybody, action: allow, services: [kubernetes], impersonate: {self: true, users: ['*'], groups: ['*']}}
";
/// A policy that allows the namespace of the cases by its label.
const ALLOW_LABELLED: &str = "rules:
- {name: services, action: allow, services: [prometheus, graph, gitops, alerts, audit]}
- {name: paths, action: allow, services: [kubernetes], nonResourceURLs: [/version, /api, '/api/*', /apis, '/apis/*']}
- {name: labelled, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {matrix: place}}}
";
/// A policy that allows nothing.
const DENY_ALL: &str = "rules:\n- {name: nothing, action: deny, services: ['*']}\n";

impl Policy {
    /// Returns the file of agentk.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::All => ALLOW_ALL,
            Self::Labels => ALLOW_LABELLED,
        }
    }
}

/// Sends the request while the event of the case happens.
pub(crate) fn try_event(world: &World) {
    world.send().unwrap();
    // The caller of another service may have no right to kubernetes.
    let is_plain =
        matches!(world.case.request, Request::Get | Request::List | Request::Post | Request::PodProxy);
    if world.case.policy == Policy::Labels && is_plain {
        // GitLab's protocol does not carry the header with the reason.
        let refusal = requests::request_unlabelled_namespace(world);
        assert!(refusal.is(403, "the policy of this cluster"), "{refusal:?}");
    }
    match world.case.event {
        Event::Nothing => {}
        Event::AgentStops | Event::KasStops | Event::Age => try_unnoticed(world),
        Event::Revocation => {
            try_refusal(world, || callers::revoke(world), |failure| failure.is(401, ""));
        }
        Event::KillSwitch => {
            try_refusal(world, || disable(world), |failure| failure.is(503, "incident 4711"));
        }
        Event::Policy => {
            try_refusal(world, || deny(world), |failure| failure.is(403, "the policy of this cluster"));
        }
    }
}

/// No request fails, and what runs goes on.
fn try_unnoticed(world: &World) {
    let running = Running::start(world).transpose().unwrap();
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut failures = Vec::new();
            // A further stream for each turn of a streaming request would take seconds.
            while running.is_none() && !done.load(Relaxed) {
                failures.extend(world.send().err());
                answered.fetch_add(1, Relaxed);
            }
            failures
        });
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            happen(world);
            if running.is_none() {
                let before = answered.load(Relaxed);
                eventually("further requests are answered", || answered.load(Relaxed) >= before + 2);
            }
        }));
        done.store(true, Relaxed);
        let failures = load.join().unwrap();
        if let Err(panic) = happened {
            std::panic::resume_unwind(panic);
        }
        failures
    });
    assert!(failures.is_empty(), "{} requests failed: {:?}", failures.len(), failures[0]);
    if let Some(running) = running {
        running.finish().unwrap();
    }
    world.send().unwrap();
}

fn happen(world: &World) {
    let handshakes = || world.replicas.iter().map(|kas| kas.metric("kas_handshakes_total")).sum::<f64>();
    let dials = || world.replicas.iter().map(|kas| kas.metric("kas_dials_total")).sum::<f64>();
    match world.case.event {
        Event::AgentStops => {
            if world.case.agent == AgentKind::Receptive {
                world.balancer.set_servers(world.targets[1..].to_vec());
            }
            world.pods[0].terminate();
            eventually("the pod drains", || {
                world.pods[0].printed().contains("drain") || world.pods[0].printed().contains("stop")
            });
        }
        Event::KasStops => {
            if world.case.agent != AgentKind::Receptive {
                world.balancer.set_servers(vec![world.targets[world.callers_replica]]);
            }
            world.other_kas().process.terminate();
            eventually("the tunnel is at the other replica", || world.kas().metric("kas_tunnels") >= 1.0);
        }
        _ => {
            let before = handshakes() + dials();
            eventually("a tunnel is replaced", || handshakes() + dials() > before);
        }
    }
}

/// The running request ends, and further requests are refused.
fn try_refusal(world: &World, happen: impl Fn(), is_expected: impl Fn(&Failure) -> bool) {
    let running = Running::start(world).transpose().unwrap();
    happen();
    // A request that runs at this moment is cut.
    eventually("the request is refused", || world.send().is_err_and(|failure| is_expected(&failure)));
    // A watch of a policy is decided when it begins.
    if let Some(running) = running.filter(|_| world.case.event != Event::Policy) {
        running.wait_until_ended();
    }
}

fn disable(world: &World) {
    for replica in ["kas-0", "kas-1"] {
        let file = world.directory.path().join(replica).join("disabled.yaml");
        let mut command = Kas::command();
        command.args([
            "disable",
            "--agent",
            &world.case.agent_id().to_string(),
            "--reason",
            "incident 4711",
            "--file",
        ]);
        let output = run(command.arg(file), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn deny(world: &World) {
    let file = world.directory.path().join("policy.new");
    fs::write(&file, DENY_ALL).unwrap();
    fs::rename(file, world.directory.path().join("policy.yaml")).unwrap();
}
