import{a as s,p as n,P as p}from"./index-OnF9pYmc.js";function t({replicas:a}){return s(p,{reasons:a.map(({replica:i,error:r})=>`Replica ${i}: ${n(r,500)}`)})}export{t as M};
