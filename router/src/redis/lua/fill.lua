-- Writes some of a replica's records anew, out of sight. The first part begins from nothing.
-- KEYS: next routes. ARGV: generation, life in ms, whether it is the first part, then agent and record in turn.
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
