//! The messages of Hubble, derived by hand from their field numbers. They have the fields that alerts need; others are skipped.

use prost::{Message, Oneof};

/// The path of the RPC that follows flows.
pub const GET_FLOWS: &str = "/observer.Observer/GetFlows";

/// The path of the RPC that describes the server.
pub const SERVER_STATUS: &str = "/observer.Observer/ServerStatus";

/// `flow.Verdict`: the packet or the request was dropped.
pub const DROPPED: i32 = 2;
/// `flow.Verdict`: it would have been dropped if the policy were not in audit mode.
pub const AUDIT: i32 = 4;
/// `flow.FlowType`: the record of a proxy.
pub const L7: i32 = 2;
/// `flow.TrafficDirection`: the policy of the destination decided.
pub const INGRESS: i32 = 1;
/// `flow.TrafficDirection`: the policy of the source decided.
pub const EGRESS: i32 = 2;

/// `observer.ServerStatusRequest`, which has no fields, and `observer.ServerStatusResponse`, of which none is read.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ServerStatus {}

/// `observer.GetFlowsRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct GetFlowsRequest {
    /// The stream goes on with new flows.
    #[prost(bool, tag = "3")]
    pub follow: bool,
    /// Flows that match one of the filters.
    #[prost(message, repeated, tag = "6")]
    pub whitelist: Vec<FlowFilter>,
    /// The time of the first flow.
    #[prost(message, optional, tag = "7")]
    pub since: Option<Timestamp>,
}

/// `flow.FlowFilter`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FlowFilter {
    /// The verdicts, of which a flow has one.
    #[prost(int32, repeated, tag = "5")]
    pub verdict: Vec<i32>,
}

/// `observer.GetFlowsResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct GetFlowsResponse {
    /// The content.
    #[prost(oneof = "FlowsContent", tags = "1, 2, 3")]
    pub content: Option<FlowsContent>,
}

/// The content of a response.
#[derive(Clone, PartialEq, Oneof)]
pub enum FlowsContent {
    /// A flow.
    #[prost(message, tag = "1")]
    Flow(Box<Flow>),
    /// Nodes that Hubble Relay has reached or lost.
    #[prost(message, tag = "2")]
    NodeStatus(NodeStatus),
    /// Flows that Hubble has lost.
    #[prost(message, tag = "3")]
    Lost(LostEvents),
}

/// `relay.NodeStatusEvent`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeStatus {
    /// The state of the nodes.
    #[prost(int32, tag = "1")]
    pub state: i32,
    /// The names of the nodes.
    #[prost(string, repeated, tag = "2")]
    pub node_names: Vec<String>,
}

/// `flow.LostEvent`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LostEvents {
    /// The number of flows.
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

/// `flow.Flow`.
#[derive(Clone, PartialEq, Message)]
pub struct Flow {
    /// The time at which the node saw it.
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    /// The verdict.
    #[prost(int32, tag = "2")]
    pub verdict: i32,
    /// The addresses.
    #[prost(message, optional, tag = "5")]
    pub ip: Option<Ip>,
    /// The protocol and the ports.
    #[prost(message, optional, tag = "6")]
    pub l4: Option<Layer4>,
    /// The sender.
    #[prost(message, optional, tag = "8")]
    pub source: Option<Endpoint>,
    /// The receiver.
    #[prost(message, optional, tag = "9")]
    pub destination: Option<Endpoint>,
    /// Packets, or the record of a proxy.
    #[prost(int32, tag = "10")]
    pub r#type: i32,
    /// The DNS names of the receiver.
    #[prost(string, repeated, tag = "14")]
    pub destination_names: Vec<String>,
    /// The direction, as the end sees it whose policy decided.
    #[prost(int32, tag = "22")]
    pub traffic_direction: i32,
    /// The reason of a drop.
    #[prost(int32, tag = "25")]
    pub drop_reason: i32,
    /// The policies of the source that forbid it. A default deny has none.
    #[prost(message, repeated, tag = "21004")]
    pub egress_denied_by: Vec<Policy>,
    /// The policies of the destination that forbid it. A default deny has none.
    #[prost(message, repeated, tag = "21005")]
    pub ingress_denied_by: Vec<Policy>,
}

/// `flow.IP`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ip {
    /// The address of the sender.
    #[prost(string, tag = "1")]
    pub source: String,
    /// The address of the receiver.
    #[prost(string, tag = "2")]
    pub destination: String,
}

/// `flow.Layer4`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Layer4 {
    /// The protocol.
    #[prost(oneof = "Protocol", tags = "1, 2, 3, 4, 5")]
    pub protocol: Option<Protocol>,
}

/// The protocol of a flow.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Protocol {
    /// TCP.
    #[prost(message, tag = "1")]
    Tcp(Ports),
    /// UDP.
    #[prost(message, tag = "2")]
    Udp(Ports),
    /// ICMP.
    #[prost(message, tag = "3")]
    IcmpV4(Icmp),
    /// ICMP of IPv6.
    #[prost(message, tag = "4")]
    IcmpV6(Icmp),
    /// SCTP.
    #[prost(message, tag = "5")]
    Sctp(Ports),
}

/// `flow.TCP`, `flow.UDP` and `flow.SCTP`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ports {
    /// The port of the receiver.
    #[prost(uint32, tag = "2")]
    pub destination: u32,
}

/// `flow.ICMPv4` and `flow.ICMPv6`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Icmp {}

/// `flow.Endpoint`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Endpoint {
    /// The namespace of a pod.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// The labels, as `source:key=value`.
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
    /// The name of a pod.
    #[prost(string, tag = "5")]
    pub pod_name: String,
    /// The workloads of a pod.
    #[prost(message, repeated, tag = "6")]
    pub workloads: Vec<Workload>,
}

/// `flow.Workload`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Workload {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The kind.
    #[prost(string, tag = "2")]
    pub kind: String,
}

/// `flow.Policy`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Policy {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The namespace, which is empty for a policy of the cluster.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The kind.
    #[prost(string, tag = "5")]
    pub kind: String,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds of the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl GetFlowsRequest {
    /// Returns the request for the flows that a policy dropped, or would have dropped, from a time on.
    pub fn of_drops(since: Option<Timestamp>) -> Self {
        Self { follow: true, whitelist: vec![FlowFilter { verdict: vec![DROPPED, AUDIT] }], since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that Hubble's own client sends for `follow` and both verdicts.
    #[test]
    fn request_has_the_bytes_of_hubble() {
        let bytes = GetFlowsRequest::of_drops(None).encode_to_vec();
        assert_eq!(bytes, [0x18, 1, 0x32, 4, 0x2a, 2, 2, 4]);
    }

    #[test]
    fn unknown_fields_are_skipped_and_wrong_types_are_errors() {
        // Field 2 (verdict) is 2, field 34 (uuid) is text.
        let flow = Flow::decode(&[0x10, 2, 0x92, 2, 1, b'u'][..]).unwrap();
        assert_eq!(flow.verdict, DROPPED);
        // Field 8 (source) is a number.
        assert!(Flow::decode(&[0x40, 1][..]).is_err());
    }
}
