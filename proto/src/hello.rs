//! The hello, which agentk sends when it opens a tunnel, and the welcome, with which kas answers.

use std::fmt;

use http::HeaderValue;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{InstanceId, ReplicaId, ServiceName, TunnelId, agent_configuration::Scope};

/// Longest hello or welcome, in bytes. A few dozen services fit into it.
const MAX_LENGTH: usize = 4096;
/// Most services that one agent may announce.
const MAX_SERVICES: usize = 32;
/// Longest free text (version, pod name, …), in bytes.
const MAX_TEXT: usize = 253;
/// Longest name of a namespace, in bytes.
const MAX_NAMESPACE: usize = 63;
/// Most bytes of the names in the scope of a hello.
const MAX_SCOPE: usize = 512;
/// Longest text of a scope with several names.
const MAX_SCOPE_TEXT: usize = 40;

/// Describes agentk to kas: the value of the header [`crate::header::HELLO`], as JSON.
///
/// Unknown fields are ignored, so that an older kas accepts a newer agentk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The id of the agentk process.
    pub instance: InstanceId,
    /// The version of agentk.
    pub version: String,
    /// The name of the pod that agentk runs in, if it runs in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The namespace of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_namespace: Option<String>,
    /// The version of the cluster, once agentk has received it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// The request types that this agent serves.
    pub services: Vec<ServiceName>,
    /// The number of the tunnel among those of the process, from 0.
    pub tunnel_index: u16,
    /// The UID of the namespace `kube-system`, which identifies the cluster, if agentk may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The part of the cluster that agentk serves. Older versions do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeSummary>,
}

/// The part of the cluster that an agentk serves, with as many names as fit into a hello. Its text is short: `cluster`, or
/// `shop,shop-staging,+3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeSummary {
    /// The first of its namespaces, or `None` for the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// The number of further namespaces.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u16,
}

/// The answer of kas to a [`Hello`]: the value of the header [`crate::header::WELCOME`] on the 101, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The replica at the other end. agentk spreads its tunnels over distinct replicas.
    pub replica: ReplicaId,
    /// The number of replicas that this one has found. agentk searches for no more.
    #[serde(default = "one")]
    pub replicas: u16,
    /// The id of the tunnel in the logs of both ends.
    pub tunnel: TunnelId,
    /// The limits that kas keeps to.
    pub limits: TunnelLimits,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u16) -> bool {
    *number == 0
}

fn one() -> u16 {
    1
}

/// The limits of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelLimits {
    /// Most requests in flight at once.
    pub max_concurrent_streams: u32,
    /// Most bytes in the headers of one request, names and values.
    pub max_header_bytes: u32,
}

/// The reason why a hello or a welcome cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The value is longer than 4096 bytes.
    #[error("it is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// The value has bytes outside of visible ASCII.
    #[error("it is not visible ASCII")]
    NotAscii,
    /// The value is not JSON, or a field is missing or has the wrong type.
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The hello announces more than 32 services.
    #[error("it names more than {MAX_SERVICES} services")]
    TooManyServices,
    /// A text field is too long, or is not printable.
    #[error("its field {0} is too long, or holds control characters")]
    BadText(&'static str),
}

impl Hello {
    /// The beginning of the version of GitLab's agentk, for which kas writes the hello.
    pub const GITLAB: &str = "gitlab-";
    /// The version of GitLab's agentk before it names it.
    pub const UNKNOWN: &str = "unknown";

    /// Returns whether the agent serves the request type with this name.
    pub fn serves(&self, service: &str) -> bool {
        self.services.iter().any(|served| served.as_str() == service)
    }

    /// Returns the version of GitLab's agentk, or `None` for this one.
    pub fn gitlab_version(&self) -> Option<&str> {
        self.version.strip_prefix(Self::GITLAB)
    }

    /// Returns whether the process has named its version. GitLab's agentk does so after the first requests.
    pub fn is_described(&self) -> bool {
        self.gitlab_version() != Some(Self::UNKNOWN)
    }

    /// Returns the version as the agent itself names it.
    pub fn own_version(version: &str) -> String {
        version.strip_prefix(Self::GITLAB).map_or_else(|| version.to_owned(), |own| format!("v{own}"))
    }

    /// Returns the header value.
    ///
    /// # Errors
    ///
    /// If [`Hello::decode`] would refuse the value.
    pub fn encode(&self) -> Result<HeaderValue, HelloError> {
        self.validate()?;
        encode(self)
    }

    /// Parses a header value, which is untrusted.
    pub fn decode(value: &HeaderValue) -> Result<Self, HelloError> {
        let hello: Self = decode(value)?;
        hello.validate()?;

        Ok(hello)
    }

    fn validate(&self) -> Result<(), HelloError> {
        if self.services.len() > MAX_SERVICES {
            return Err(HelloError::TooManyServices);
        }

        text("version", Some(&self.version))?;
        text("pod_name", self.pod_name.as_deref())?;
        text("pod_namespace", self.pod_namespace.as_deref())?;
        text("kubernetes_version", self.kubernetes_version.as_deref())?;
        text("cluster", self.cluster.as_deref())?;
        let mut namespaces = self.scope.iter().filter_map(|scope| scope.namespaces.as_ref()).flatten();
        if namespaces.any(|name| name.len() > MAX_NAMESPACE || text("scope", Some(name)).is_err()) {
            return Err(HelloError::BadText("scope"));
        }
        Ok(())
    }
}

impl ScopeSummary {
    /// Returns the summary of a scope. `None` is the whole cluster.
    pub fn new(scope: Option<&Scope>) -> Self {
        let Some(Scope { namespaces: all }) = scope else { return Self::default() };
        let mut bytes = 0;
        let fit = all.iter().take_while(|name| {
            bytes += name.len();
            bytes <= MAX_SCOPE
        });
        let namespaces: Vec<String> = fit.cloned().collect();
        let omitted = u16::try_from(all.len() - namespaces.len()).unwrap_or(u16::MAX);
        Self { namespaces: Some(namespaces), omitted }
    }
}

impl fmt::Display for ScopeSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(namespaces) = &self.namespaces else { return f.write_str("cluster") };
        let mut written = 0;
        // The first name is shown in any case.
        let shown = namespaces.iter().enumerate().take_while(|(index, name)| {
            written += name.len() + 1;
            *index == 0 || written <= MAX_SCOPE_TEXT
        });
        let shown = shown.map(|(_, name)| name.as_str()).collect::<Vec<_>>();
        let more = namespaces.len() - shown.len() + usize::from(self.omitted);
        match (&*shown, more) {
            ([], 0) => f.write_str("none"),
            (_, 0) => f.write_str(&shown.join(",")),
            (_, _) => write!(f, "{},+{more}", shown.join(",")),
        }
    }
}

impl Welcome {
    /// Returns the header value.
    pub fn encode(&self) -> Result<HeaderValue, HelloError> {
        encode(self)
    }

    /// Parses a header value.
    pub fn decode(value: &HeaderValue) -> Result<Self, HelloError> {
        decode(value)
    }
}

fn encode<T: Serialize>(message: &T) -> Result<HeaderValue, HelloError> {
    let json = serde_json::to_string(message)?;
    if json.len() > MAX_LENGTH {
        return Err(HelloError::TooLong);
    }

    HeaderValue::from_str(&json).map_err(|_| HelloError::NotAscii)
}

fn decode<T: DeserializeOwned>(value: &HeaderValue) -> Result<T, HelloError> {
    if value.len() > MAX_LENGTH {
        return Err(HelloError::TooLong);
    }

    let json = value.to_str().map_err(|_| HelloError::NotAscii)?;
    Ok(serde_json::from_str(json)?)
}

/// Checks a text field, which logs and tables show. With printable ASCII only, it cannot forge a line or a colour.
fn text(field: &'static str, value: Option<&str>) -> Result<(), HelloError> {
    let printable = |b: u8| b == b' ' || b.is_ascii_graphic();
    match value {
        Some(text) if text.len() > MAX_TEXT || !text.bytes().all(printable) => {
            Err(HelloError::BadText(field))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        hello_with(InstanceId::random())
    }

    fn hello_with(instance: InstanceId) -> Hello {
        Hello {
            instance,
            version: "0.1.0".into(),
            pod_name: Some("agentk-7d9c".into()),
            pod_namespace: None,
            kubernetes_version: Some("v1.32.4".into()),
            cluster: Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b".into()),
            scope: Some(ScopeSummary { namespaces: Some(vec!["shop".into()]), omitted: 2 }),
            services: vec!["kubernetes".parse().unwrap(), "prometheus".parse().unwrap()],
            tunnel_index: 1,
        }
    }

    #[test]
    fn encoded_hello_is_decoded_to_the_same() {
        let hello = hello();
        assert_eq!(Hello::decode(&hello.encode().unwrap()).unwrap(), hello);
    }

    #[test]
    fn unknown_field_is_ignored() {
        let mut json = serde_json::to_value(hello()).unwrap();
        json["colour"] = "blue".into();
        assert!(Hello::decode(&HeaderValue::from_str(&json.to_string()).unwrap()).is_ok());
    }

    #[test]
    fn hello_of_an_older_agentk_has_neither_cluster_nor_scope() {
        let mut json = serde_json::to_value(hello()).unwrap();
        json.as_object_mut().unwrap().retain(|key, _| !["cluster", "scope"].contains(&key.as_str()));
        let decoded = Hello::decode(&HeaderValue::from_str(&json.to_string()).unwrap()).unwrap();
        assert_eq!(decoded, Hello { cluster: None, scope: None, ..hello_with(decoded.instance) });
    }

    #[test]
    fn scope_of_any_size_fits_into_a_hello() {
        let scope = |count: usize, name: &str| {
            let namespaces = (0..count).map(|index| format!("{name}-{index}")).collect();
            ScopeSummary::new(Some(&Scope { namespaces }))
        };
        for (summary, text) in [
            (ScopeSummary::new(None), "cluster"),
            (scope(0, "a"), "none"),
            (scope(2, "shop"), "shop-0,shop-1"),
            (scope(1000, "shop"), "shop-0,shop-1,shop-2,shop-3,shop-4,+995"),
            (scope(2, &"x".repeat(60)), &format!("{}-0,+1", "x".repeat(60))),
        ] {
            assert_eq!(summary.to_string(), text);
            Hello { scope: Some(summary), ..hello() }.encode().unwrap();
        }
        let forged = ScopeSummary { namespaces: Some(vec!["a\n".into()]), omitted: 0 };
        assert!(matches!(
            Hello { scope: Some(forged), ..hello() }.encode(),
            Err(HelloError::BadText("scope"))
        ));
    }

    #[test]
    fn welcome_without_number_of_replicas_means_one() {
        let [replica, tunnel] = [(); 2].map(|()| ReplicaId::random().to_string());
        let limits = serde_json::json!({"max_concurrent_streams": 100, "max_header_bytes": 65536});
        let json = serde_json::json!({"replica": replica, "tunnel": tunnel, "limits": limits});
        let welcome = Welcome::decode(&HeaderValue::from_str(&json.to_string()).unwrap()).unwrap();
        assert_eq!(welcome.replicas, 1);
        assert_eq!(Welcome::decode(&welcome.encode().unwrap()).unwrap(), welcome);
    }

    #[test]
    fn hello_beyond_the_limits_is_refused() {
        let long = HeaderValue::from_str(&"x".repeat(MAX_LENGTH + 1)).unwrap();
        assert!(matches!(Hello::decode(&long), Err(HelloError::TooLong)));

        let many = Hello { services: vec!["a".parse().unwrap(); MAX_SERVICES + 1], ..hello() };
        let json = serde_json::to_string(&many).unwrap();
        assert!(matches!(
            Hello::decode(&HeaderValue::from_str(&json).unwrap()),
            Err(HelloError::TooManyServices)
        ));

        let forged = Hello { version: "1\u{1b}[31m".into(), ..hello() };
        let json = serde_json::to_string(&forged).unwrap();
        assert!(matches!(
            Hello::decode(&HeaderValue::from_str(&json).unwrap()),
            Err(HelloError::BadText("version"))
        ));

        assert!(matches!(Hello::decode(&HeaderValue::from_static("{}")), Err(HelloError::Malformed(_))));
    }
}
