-- Writes the records of some agents and publishes an event.
-- KEYS: routes, gone. ARGV: generation, now in seconds, TTL of gone in ms, channel, event, then pairs of field and value;
-- the value of a field to remove is empty. Only the fields of agents are numbers.
-- Returns 0, and writes nothing, if the records in Redis have another generation or are lost; else 1. A delayed write of
-- an earlier connection thus never changes the records of a later one.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
local set, del, gone = {}, {}, {}
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    del[#del + 1] = ARGV[i]
    if tonumber(ARGV[i]) then
      gone[#gone + 1] = ARGV[i]
      gone[#gone + 1] = ARGV[2]
    end
  else
    set[#set + 1] = ARGV[i]
    set[#set + 1] = ARGV[i + 1]
  end
end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
if #del > 0 then
  redis.call('HDEL', KEYS[1], unpack(del))
end
if #gone > 0 then
  redis.call('HSET', KEYS[2], unpack(gone))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1
