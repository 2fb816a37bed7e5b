<<<<<<<< HEAD:web/dist/assets/missing-D21ukLoC.js
import{a as s,p as n,P as p}from"./index-CXXDvobL.js";function t({replicas:a}){return s(p,{reasons:a.map(({replica:i,error:r})=>`Replica ${i}: ${n(r,500)}`)})}export{t as M};
========
import{a as s,p as n,P as p}from"./index-D4j8EsAW.js";function t({replicas:a}){return s(p,{reasons:a.map(({replica:i,error:r})=>`Replica ${i}: ${n(r,500)}`)})}export{t as M};
>>>>>>>> 9472b9a6 (fix(web): keep options of an agent out of the command of kubectl):web/dist/assets/missing-BFDrYVsa.js
