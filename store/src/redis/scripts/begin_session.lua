-- Begins a session of a browser, by the rule of `SessionTable` in store/src/sessions.rs and the server's clock.
-- KEYS: record, sessions of the holder, all sessions. ARGV: id, holder, record, TTL of the record in ms, TTL of the sets in ms, the most
-- sessions of the holder, the most sessions, prefix of the records, prefix of the sets of holders.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local of_holder, all = KEYS[2], KEYS[3]
for _, set in ipairs({ of_holder, all }) do
  local kind = redis.call('TYPE', set).ok
  if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', set) end
  redis.call('ZREMRANGEBYSCORE', set, '-inf', now)
end
local function end_first(set)
  local id = redis.call('ZRANGE', set, 0, 0)[1]
  if not id then return end
  local holder = redis.pcall('GETRANGE', ARGV[8] .. id, 0, 31)
  redis.call('DEL', ARGV[8] .. id)
  redis.call('ZREM', all, id)
  redis.call('ZREM', of_holder, id)
  if type(holder) == 'string' and holder ~= '' then redis.pcall('ZREM', ARGV[9] .. holder, id) end
end
if redis.call('ZCARD', of_holder) >= tonumber(ARGV[6]) then
  end_first(of_holder)
elseif redis.call('ZCARD', all) >= tonumber(ARGV[7]) then
  end_first(all)
end
redis.call('SET', KEYS[1], ARGV[2] .. ARGV[3], 'PX', ARGV[4])
for _, set in ipairs({ of_holder, all }) do
  redis.call('ZADD', set, string.format('%.0f', now + ARGV[4]), ARGV[1])
  redis.call('PEXPIRE', set, ARGV[5])
end
