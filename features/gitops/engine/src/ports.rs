//! The protocol of ports.
//!
//! `protocol` is a part of the key of a port, and API servers before Kubernetes 1.21 do not know its default in a server-side apply:
//! they answer 500 to a Service without it.

use proto::gitops::ObjectId;
use serde_json::Value;

use crate::manifest::pod_spec;

/// Sets the protocol of ports that have none to TCP, which is the default of Kubernetes.
pub(crate) fn set_protocols(id: &ObjectId, object: &mut Value) {
    if (&*id.group, &*id.kind) == ("", "Service") {
        return object.pointer_mut("/spec/ports").into_iter().for_each(set);
    }
    let Some(pod) = pod_spec(id) else { return };
    for containers in ["containers", "initContainers"] {
        let containers = object.pointer_mut(&format!("{pod}/{containers}")).and_then(Value::as_array_mut);
        containers.into_iter().flatten().filter_map(|container| container.get_mut("ports")).for_each(set);
    }
}

fn set(ports: &mut Value) {
    let ports = ports.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    for port in ports {
        port.entry("protocol").or_insert_with(|| "TCP".into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn protocols_of(group: &str, kind: &str, mut object: Value) -> Value {
        let text = str::to_owned;
        let id = ObjectId { group: text(group), kind: text(kind), ..ObjectId::default() };
        set_protocols(&id, &mut object);
        object
    }

    #[test]
    fn port_without_a_protocol_is_tcp() {
        let ports = |protocol: Value| {
            let mut port = json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]);
            if !protocol.is_null() {
                port[0]["protocol"] = protocol;
            }
            port
        };
        let (before, after) = (ports(Value::Null), ports("TCP".into()));
        let service = protocols_of("", "Service", json!({"spec": {"ports": before}}));
        assert_eq!(service, json!({"spec": {"ports": after}}));
        for (group, kind, place) in [
            ("", "Pod", "/spec"),
            ("apps", "Deployment", "/spec/template/spec"),
            ("batch", "CronJob", "/spec/jobTemplate/spec/template/spec"),
        ] {
            let wrap = |ports: &Value| {
                let pod = json!({"containers": [{"ports": ports}, {}], "initContainers": [{"ports": ports}]});
                place.rsplit('/').filter(|key| !key.is_empty()).fold(pod, |inner, key| json!({key: inner}))
            };
            assert_eq!(protocols_of(group, kind, wrap(&before)), wrap(&after), "{kind}");
        }
    }

    #[test]
    fn other_objects_stay_as_they_are() {
        for object in [
            json!({"spec": {"ports": [{"port": 80}]}}),
            json!({"spec": "text"}),
            json!({"spec": {"template": {"spec": {"containers": {"ports": 1}}}}}),
        ] {
            assert_eq!(protocols_of("example.com", "Service", object.clone()), object);
            assert_eq!(protocols_of("apps", "Deployment", object.clone()), object);
        }
    }
}
