-- What a replica says of some agents. Refused (0) unless the records are those of its present connection: what an old
-- connection left on its way never touches what a newer one wrote, and records that are lost are noticed.
-- KEYS: routes, gone. ARGV: generation, now, life of gone in ms, channel, event, then agent and record in turn; an
-- empty record is an agent that left.
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
local set, del, gone = {}, {}, {}
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    del[#del + 1] = ARGV[i]
    gone[#gone + 1] = ARGV[i]
    gone[#gone + 1] = ARGV[2]
  else
    set[#set + 1] = ARGV[i]
    set[#set + 1] = ARGV[i + 1]
  end
end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
if #del > 0 then
  redis.call('HDEL', KEYS[1], unpack(del))
  redis.call('HSET', KEYS[2], unpack(gone))
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1
