//! The table of what may not work together, with the answer that says so.

use super::values::{AgentKind, Caller, Case, Event, Name, Policy, Request, Rights, Size, Transport, Value};

/// The result that a case must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// The answer is that of the cluster without kas.
    Works,
    /// The status, the kind in the header `kas-error`, and a part of the body.
    Refused(u16, Option<&'static str>, &'static str),
    /// kas does not read its identity file: a part of the error.
    NoConfiguration(&'static str),
}

use Expectation::{NoConfiguration, Refused};

/// Two values that cannot meet, and why.
struct Rule {
    values: [Value; 2],
    outcome: Outcome,
}

/// Why two values cannot meet.
enum Outcome {
    /// This is the answer, which a case of its own tests.
    Answer(Expectation),
    /// No program does this.
    Impossible,
}

fn answer(a: impl Into<Value>, b: impl Into<Value>, expectation: Expectation) -> Rule {
    Rule { values: [a.into(), b.into()], outcome: Outcome::Answer(expectation) }
}

fn impossible(a: impl Into<Value>, b: impl Into<Value>) -> Rule {
    Rule { values: [a.into(), b.into()], outcome: Outcome::Impossible }
}

/// A part of the refusal of a service that the agent cannot have.
pub(crate) const NO_SERVICE: &str = "speaks GitLab's protocol";

/// The services that GitLab's protocol does not have.
const SERVICES: [Request; 5] =
    [Request::PromQl, Request::Graph, Request::GitOps, Request::Alerts, Request::Audit];

/// Returns the table.
fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for caller in Caller::ALL {
        // An entry of the identity file may have agents of GitLab. GitLab says for which of its agents its users are.
        if !caller.is_of_gitlab() {
            continue;
        }
        let refusal = match caller {
            Caller::Job => Refused(403, Some("forbidden"), "add the project of this job to ci_access"),
            Caller::GitLabLogin => Refused(404, Some("unknown-agent"), "there is no agent"),
            _ => Refused(401, Some("unauthorized"), "GitLab does not let this user use this agent"),
        };
        for agent in [AgentKind::Identity, AgentKind::Receptive] {
            rules.push(answer(*caller, agent, refusal));
        }
        // By default, jobs read what is for a deployment, and users read everything.
        if *caller == Caller::Job {
            for service in [Request::Alerts, Request::Events] {
                rules.push(answer(
                    *caller,
                    service,
                    Refused(403, Some("forbidden"), "services of its entry of ci_access"),
                ));
            }
        }
    }
    // GitLab's agentk has the service kubernetes only.
    for service in SERVICES {
        rules.push(answer(
            AgentKind::Independent,
            service,
            Refused(404, Some("unknown-service"), NO_SERVICE),
        ));
    }
    // gRPC without a WebSocket is GitLab's protocol.
    for transport in [Transport::Grpc, Transport::Grpcs] {
        for service in SERVICES {
            rules.push(answer(transport, service, Refused(404, Some("unknown-service"), NO_SERVICE)));
        }
    }
    // It has no policy file. kas itself has the events, and the policy limits what the others read and change, not who asks them.
    rules.push(impossible(AgentKind::Independent, Event::Policy));
    rules.push(impossible(AgentKind::Independent, Policy::Labels));
    for service in [Request::Events, Request::Graph, Request::GitOps, Request::Alerts] {
        rules.push(impossible(service, Event::Policy));
    }
    for transport in [Transport::Grpc, Transport::Grpcs] {
        rules.push(answer(AgentKind::Receptive, transport, NoConfiguration("ws")));
    }
    for agent in AgentKind::ALL {
        rules.push(answer(Name::Dot, *agent, Refused(404, Some("unknown-agent"), "there is no agent")));
    }
    // kas reads the list in the repository of the agent, which has none for them.
    for caller in [Caller::Pat, Caller::GitLabSession] {
        rules.push(impossible(caller, Rights::Listed));
    }
    // The page has a list of its own, and the environments are on the page only. No agent can close the lists.
    for caller in Caller::ALL {
        let other = if caller.is_of_page() { Request::Agents } else { Request::Environments };
        rules.push(impossible(*caller, other));
    }
    for list in [Request::Agents, Request::Environments] {
        for event in [Event::KillSwitch, Event::Policy] {
            rules.push(impossible(list, event));
        }
    }
    // The identity file alone has `cluster_audit`.
    let no_audit = Refused(403, Some("forbidden"), "service audit");
    for caller in [Caller::Job, Caller::Pat, Caller::GitLabSession] {
        rules.push(answer(caller, Request::Audit, no_audit));
    }
    // A login at GitLab has the rights of the same user as its session.
    rules.push(impossible(Caller::GitLabLogin, Request::Audit));
    // Other requests have no subprotocol.
    for request in Request::ALL {
        if *request != Request::ExecWebSocket {
            rules.push(impossible(Caller::WebSocketToken, *request));
        }
    }
    // Browsers have no SPDY, and no page forwards ports.
    for caller in [Caller::GitLabSession, Caller::PageSession, Caller::GitLabLogin] {
        for request in [Request::ExecSpdy, Request::ForwardSpdy, Request::ForwardWebSocket] {
            rules.push(impossible(caller, request));
        }
    }
    rules.push(answer(Caller::PageSession, Request::ExecWebSocket, Refused(403, None, "")));
    let no_pages = Refused(403, None, "web pages of the cluster are not shown here");
    rules.push(answer(Caller::PageSession, Request::PodProxy, no_pages));
    // The page refuses the same whoever has logged in.
    for request in [Request::ExecWebSocket, Request::PodProxy] {
        rules.push(impossible(Caller::GitLabLogin, request));
    }
    for request in Request::ALL {
        for size in Size::ALL {
            if !sizes(*request).contains(size) {
                rules.push(impossible(*request, *size));
            }
        }
    }
    rules
}

/// Returns the sizes that a request has.
fn sizes(request: Request) -> &'static [Size] {
    match request {
        Request::List => &[Size::Down],
        Request::Post => &[Size::Small, Size::Up],
        Request::ExecWebSocket | Request::ExecSpdy | Request::ForwardWebSocket | Request::ForwardSpdy => {
            &[Size::Small, Size::Down, Size::Up]
        }
        _ => &[Size::Small],
    }
}

/// The table, in the form in which the generator asks for it.
pub(crate) struct Table(Vec<Rule>);

impl Table {
    pub(crate) fn new() -> Self {
        Self(rules())
    }

    /// Returns whether two values can meet and work.
    pub(crate) fn is_allowed(&self, a: Value, b: Value) -> bool {
        !self.0.iter().any(|rule| rule.values == [a, b] || rule.values == [b, a])
    }

    /// Returns a case for each answer of the table, in which nothing else is refused.
    pub(crate) fn refused_cases(&self) -> Vec<(Case, Expectation)> {
        let answers = self.0.iter().filter_map(|rule| match rule.outcome {
            Outcome::Answer(expectation) => Some((rule.values, expectation)),
            Outcome::Impossible => None,
        });
        answers.map(|(values, expectation)| (self.around(values), expectation)).collect()
    }

    /// Returns a case with these two values, whose other ones fit to each other and to both.
    fn around(&self, values: [Value; 2]) -> Case {
        let mut case = Case::usual().with(values[0]).with(values[1]);
        for (dimension, count) in Case::counts().into_iter().enumerate() {
            let current = case.values()[dimension];
            if values.contains(&current) {
                continue;
            }
            let fits = |candidate: &Value| {
                values.iter().all(|value| self.is_allowed(*candidate, *value))
                    && case.values()[..dimension]
                        .iter()
                        .filter(|value| !values.contains(value))
                        .all(|value| self.is_allowed(*candidate, *value))
            };
            let mut candidates = (0..count).map(|index| Case::value(dimension, index));
            case = case.with(candidates.find(fits).expect("a value fits"));
        }
        case
    }
}
