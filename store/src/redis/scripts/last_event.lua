-- Returns the number of the last event of a process of an agent, or ''.
-- KEYS: processes of the agent. ARGV: id of the process.
local last = redis.pcall('HGET', KEYS[1], ARGV[1])
return type(last) == 'string' and string.sub(last, 1, 20) or ''
