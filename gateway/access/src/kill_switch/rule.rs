//! One rule of the kill switch, and the requests that it matches.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use ipnet::IpNet;
use proto::{Reason, ServiceName};

use crate::{AgentAttributes, AgentSelector, Identity, RequestError};

/// `Retry-After` of a rule without an end.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// `Retry-After` for an agent whose name is unknown: the time of a reconnect with some backoff.
const UNKNOWN_RETRY_AFTER: Duration = Duration::from_secs(5);
/// The longest `Retry-After`: the rule may be lifted early.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Disables the requests that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisableRule {
    /// The requests.
    pub selector: Selector,
    /// The reason, which callers receive.
    pub reason: String,
    /// The time at which the rule ends by itself.
    pub until: Option<SystemTime>,
}

/// Selects requests. All given fields must match; without any field, it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The service. `prometheus` also selects `prometheus.<name>`.
    pub service: Option<ServiceName>,
    /// The agent.
    pub agent: Option<AgentSelector>,
    /// The name of the caller.
    pub caller: Option<String>,
    /// The user of an OIDC token.
    pub user: Option<String>,
    /// The network of the caller.
    pub address: Option<IpNet>,
}

/// The attributes of a request that rules select by. Before the request is authorized, its agent and its caller are unknown.
#[derive(Clone, Copy, Debug)]
pub struct RequestAttributes<'a> {
    /// The address of the caller, or `None` for a request of kas itself.
    pub address: Option<IpAddr>,
    /// The service of the agent.
    pub service: &'a ServiceName,
    /// The agent, once the request is authorized.
    pub agent: Option<AgentAttributes<'a>>,
    /// The name of the caller, once it is authenticated.
    pub caller: Option<&'a str>,
    /// The user of the OIDC token, once the caller is authenticated by one.
    pub user: Option<&'a str>,
}

impl<'a> RequestAttributes<'a> {
    /// Returns the attributes of a request of kas itself. Rules for addresses, callers and users do not match it.
    pub fn of_kas(service: &'a ServiceName, agent: AgentAttributes<'a>) -> Self {
        Self { address: None, service, agent: Some(agent), caller: None, user: None }
    }
}

impl DisableRule {
    /// Returns whether the rule has not ended.
    pub(super) fn is_active(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the error for a request that the rule matches.
    pub(super) fn error(
        &self,
        request: &RequestAttributes<'_>,
        identity: &Identity,
        now: SystemTime,
    ) -> RequestError {
        if let (Some(selected), Some(agent)) = (&self.selector.agent, request.agent)
            && selected.selects(agent, identity).is_none()
        {
            let id = agent.id;
            // The rule is probably about another agent, and its reason not for this caller.
            let what = format!(
                "the operator of kas has disabled an agent by its name, and this replica does not know the name and the project of agent {id}, \
                 because the agent is not connected or Redis does not answer"
            );
            return RequestError::new(Reason::Disabled, what).with_retry_after(UNKNOWN_RETRY_AFTER);
        }
        let left = self.until.and_then(|until| until.duration_since(now).ok()).unwrap_or(RETRY_AFTER);
        RequestError::new(Reason::Disabled, format!("the operator of kas has disabled {self}"))
            .with_retry_after(left.clamp(Duration::from_secs(1), MAX_RETRY_AFTER))
    }
}

impl Selector {
    /// Returns whether the selector selects a request. A field whose attribute is unknown does not match.
    pub(super) fn matches(&self, request: &RequestAttributes<'_>, identity: &Identity) -> bool {
        self.service.as_ref().is_none_or(|service| covers(service, request.service))
            && self.agent.as_ref().is_none_or(|selected| {
                request.agent.is_some_and(|agent| may_select(selected, agent, identity))
            })
            && self.caller.as_ref().is_none_or(|caller| request.caller == Some(&**caller))
            && self.user.as_ref().is_none_or(|user| request.user == Some(&**user))
            && self
                .address
                .is_none_or(|network| request.address.is_some_and(|address| network.contains(&address)))
    }

    /// Returns whether the selector selects requests of all callers to the agent, or to one of its services.
    pub(super) fn concerns_agent(&self, agent: AgentAttributes<'_>, identity: &Identity) -> bool {
        self.caller.is_none()
            && self.user.is_none()
            && self.address.is_none()
            && self.agent.as_ref().is_none_or(|selected| may_select(selected, agent, identity))
    }

    /// Returns the names of the fields, for the metric: `all` if there is none.
    pub(super) fn fields(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("service", self.service.is_some()),
            ("agent", self.agent.is_some()),
            ("caller", self.caller.is_some()),
            ("user", self.user.is_some()),
            ("address", self.address.is_some()),
            ("all", *self == Self::default()),
        ];
        fields.into_iter().filter_map(|(name, given)| given.then_some(name))
    }
}

/// Returns whether a rule for `service` includes the service of a request.
fn covers(service: &ServiceName, requested: &ServiceName) -> bool {
    requested == service || (service.as_str() == ServiceName::PROMETHEUS && requested.is_prometheus())
}

/// Returns whether a rule for `selected` includes an agent. One whose name or project is unknown may be any agent of GitLab.
fn may_select(selected: &AgentSelector, agent: AgentAttributes<'_>, identity: &Identity) -> bool {
    selected.selects(agent, identity).unwrap_or(true)
}

/// Formats as the fields: `agent prod, service kubernetes`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("everything");
        }
        let address = self.address.map(|network| {
            if network.prefix_len() == network.max_prefix_len() {
                network.addr().to_string()
            } else {
                network.to_string()
            }
        });
        let fields = [
            ("agent", self.agent.as_ref().map(ToString::to_string)),
            ("service", self.service.as_ref().map(ServiceName::to_string)),
            ("caller", self.caller.clone()),
            ("user", self.user.clone()),
            ("address", address),
        ];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        for (index, (name, value)) in given.enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {value}")?;
        }
        Ok(())
    }
}

/// Formats as selector, end and reason: `agent prod until 2026-11-22T15:00:00Z: maintenance`.
impl fmt::Display for DisableRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.selector)?;
        if let Some(until) = self.until {
            write!(f, " until {}", humantime::format_rfc3339_seconds(until))?;
        }
        write!(f, ": {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::AgentId;

    use super::*;

    fn selector(service: &str, agent: &str, caller: &str, address: &str) -> Selector {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Selector {
            service: some(service).map(|service| service.parse().unwrap()),
            agent: some(agent).map(|agent| agent.parse().unwrap()),
            caller: some(caller),
            user: None,
            address: some(address).map(|address| address.parse().unwrap()),
        }
    }

    fn identity() -> Identity {
        let text = "agents: [{id: 7, name: prod, tokens: []}, {id: 8, name: test, tokens: []}]";
        Identity::parse(Path::new("identity.yaml"), text).unwrap()
    }

    fn agent(id: u64) -> AgentAttributes<'static> {
        AgentAttributes { id: AgentId(id), name: None, project_path: None }
    }

    fn matches(selector: &Selector, service: &str) -> bool {
        let service = service.parse().unwrap();
        let request = RequestAttributes {
            address: Some("192.0.2.7".parse().unwrap()),
            service: &service,
            agent: Some(agent(7)),
            caller: Some("ci"),
            user: Some("dex:alice"),
        };
        selector.matches(&request, &identity())
    }

    #[test]
    fn all_fields_of_a_selector_must_match() {
        for (service, agent, caller, address, expected) in [
            ("", "", "", "", true),
            ("kubernetes", "", "", "", true),
            ("prometheus", "", "", "", false),
            ("", "prod", "", "", true),
            ("", "7", "", "", true),
            ("", "8", "", "", false),
            ("", "shop/web:prod", "", "", false),
            ("", "", "ci", "", true),
            ("", "", "c", "", false),
            ("", "", "", "192.0.2.0/24", true),
            ("", "", "", "192.0.2.7/32", true),
            ("", "", "", "192.0.3.0/24", false),
            ("", "", "", "2001:db8::/32", false),
            ("kubernetes", "prod", "ci", "192.0.2.0/24", true),
            ("kubernetes", "prod", "other", "192.0.2.0/24", false),
        ] {
            let selector = selector(service, agent, caller, address);
            assert_eq!(matches(&selector, "kubernetes"), expected, "{selector}");
        }
    }

    #[test]
    fn rules_about_addresses_do_not_concern_requests_of_kas_itself() {
        let service = "graph".parse().unwrap();
        let request =
            RequestAttributes { address: None, service: &service, agent: None, caller: None, user: None };
        assert!(!selector("", "", "", "0.0.0.0/0").matches(&request, &identity()));
        assert!(selector("graph", "", "", "").matches(&request, &identity()));
    }

    #[test]
    fn prometheus_includes_its_named_servers_and_no_other_service_does() {
        let named = "prometheus.thanos";
        assert!(matches(&selector("prometheus", "", "", ""), named));
        assert!(matches(&selector(named, "", "", ""), named));
        assert!(!matches(&selector("prometheus", "", "", ""), "prometheusx"));
        assert!(!matches(&selector(named, "", "", ""), "prometheus"));
        assert!(!matches(&selector("kubernetes", "", "", ""), "kubernetes.x"));
    }

    #[test]
    fn unknown_attribute_does_not_match() {
        let service = "kubernetes".parse().unwrap();
        let address = Some("192.0.2.7".parse().unwrap());
        let request = RequestAttributes { address, service: &service, agent: None, caller: None, user: None };
        assert!(Selector::default().matches(&request, &identity()));
        assert!(selector("kubernetes", "", "", "192.0.2.0/24").matches(&request, &identity()));
        assert!(!selector("", "prod", "", "").matches(&request, &identity()));
        assert!(!selector("", "", "ci", "").matches(&request, &identity()));
        assert!(!of_user("dex:alice").matches(&request, &identity()));
    }

    fn of_user(user: &str) -> Selector {
        Selector { user: Some(user.to_owned()), ..Selector::default() }
    }

    #[test]
    fn user_of_a_token_is_selected_by_its_whole_name_with_the_prefix() {
        for (user, expected) in [("dex:alice", true), ("alice", false), ("dex:alice2", false), ("ci", false)]
        {
            assert_eq!(matches(&of_user(user), "kubernetes"), expected, "{user}");
        }
        let of_another_caller = Selector { caller: Some("other".to_owned()), ..of_user("dex:alice") };
        assert!(!matches(&of_another_caller, "kubernetes"), "{of_another_caller}");
        assert!(!of_user("dex:alice").concerns_agent(agent(7), &identity()));
    }

    #[test]
    fn agent_of_gitlab_without_a_known_name_is_selected_by_its_id_and_by_names_of_gitlab_only() {
        let (service, reason) = ("kubernetes".parse().unwrap(), "incident 4711".to_owned());
        let address = Some("192.0.2.7".parse().unwrap());
        let agent = Some(agent(50));
        let request = RequestAttributes { address, service: &service, agent, caller: None, user: None };
        for (agent, expected) in [
            ("shop/web:prod", true),
            ("shop/web:agent-50", true),
            ("50", true),
            ("8", false),
            ("prod", false),
        ] {
            assert_eq!(selector("", agent, "", "").matches(&request, &identity()), expected, "{agent}");
        }
        let rule = DisableRule { selector: selector("", "shop/web:prod", "", ""), reason, until: None };
        let error = rule.error(&request, &identity(), SystemTime::UNIX_EPOCH);
        assert!(error.message.contains("the name and the project of agent 50"), "{}", error.message);
        assert!(!error.message.contains("4711"), "the reason may be about another agent: {}", error.message);
    }

    #[test]
    fn agent_is_concerned_by_rules_for_all_of_its_callers() {
        for (rule, expected) in [
            (Selector::default(), true),
            (selector("kubernetes", "", "", ""), true),
            (selector("", "7", "", ""), true),
            (selector("", "test", "", ""), false),
            (selector("", "prod", "ci", ""), false),
            (selector("", "", "", "192.0.2.0/24"), false),
        ] {
            assert_eq!(rule.concerns_agent(agent(7), &identity()), expected, "{rule}");
        }
    }

    #[test]
    fn error_has_rule_reason_and_bounded_retry_after() {
        let now = SystemTime::UNIX_EPOCH;
        let error = |left: Option<u64>| {
            let until = left.map(|left| now + Duration::from_secs(left));
            let selector = selector("kubernetes", "prod", "ci", "192.0.2.7/32");
            let service = "kubernetes".parse().unwrap();
            let address = Some("192.0.2.7".parse().unwrap());
            let request =
                RequestAttributes { address, service: &service, agent: None, caller: None, user: None };
            DisableRule { selector, reason: "drill".to_owned(), until }.error(&request, &identity(), now)
        };
        let all = "agent prod, service kubernetes, caller ci, address 192.0.2.7";
        assert_eq!(error(None).message, format!("the operator of kas has disabled {all}: drill"));
        assert!(error(Some(5)).message.ends_with(" until 1970-01-01T00:00:05Z: drill"));
        for (left, seconds) in [(None, 60), (Some(5), 5), (Some(0), 1), (Some(1 << 30), 3600)] {
            assert_eq!(error(left).retry_after.unwrap().as_secs(), seconds, "{left:?}");
        }
    }
}
