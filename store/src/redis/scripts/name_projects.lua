-- Notes that an agent has named projects, whose events are kept from now on.
-- KEYS: projects. ARGV: TTL in ms, the most projects, prefix of the keys of events, and the projects.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local projects = KEYS[1]
local kind = redis.call('TYPE', projects).ok
if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', projects) end
for i = 4, #ARGV do
  redis.call('ZADD', projects, string.format('%.0f', now), ARGV[i])
  redis.call('PEXPIRE', ARGV[3] .. ARGV[i], ARGV[1])
end
redis.call('PEXPIRE', projects, ARGV[1])
redis.call('ZREMRANGEBYSCORE', projects, '-inf', string.format('%.0f', now - ARGV[1]))
local extra = redis.call('ZCARD', projects) - ARGV[2]
if extra > 0 then redis.call('ZREMRANGEBYRANK', projects, 0, extra - 1) end
